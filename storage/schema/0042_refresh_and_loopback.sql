-- With the used refresh token in the clear, `salt` gives the tokens that a refresh issued: they are answered again to a
-- client that lost the answer (reference 4.3). Neither is of use without the other.
ALTER TABLE refresh_token ADD COLUMN salt BLOB;
-- Whether redirect URIs of loopback addresses fit with any port (RFC 8252, 7.3; reference 4.2).
ALTER TABLE application ADD COLUMN any_loopback_port INTEGER NOT NULL DEFAULT 0;
