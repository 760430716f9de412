-- A token of the console's pages belongs to a browser session, and goes with it (reference 4.10).
ALTER TABLE token ADD COLUMN session BLOB REFERENCES session ON DELETE CASCADE;
CREATE INDEX token_by_session ON token (session);
-- One-time links to the console.
CREATE TABLE console_link (
  hash BLOB PRIMARY KEY, user INTEGER NOT NULL REFERENCES user ON DELETE CASCADE, expires_on INTEGER NOT NULL
);
CREATE INDEX console_link_by_expiry ON console_link (expires_on);
CREATE INDEX console_link_by_user ON console_link (user);
