-- Sign-ins of applications by OpenID Connect (reference 4.11): what the code is exchanged for, and the keys that sign it.
-- `scope`: the known ones of the request, separated by blanks; empty without openid. `signed_in_on`: when the person's
-- browser session began.
ALTER TABLE authorization_code ADD COLUMN scope TEXT NOT NULL DEFAULT '';
ALTER TABLE authorization_code ADD COLUMN nonce TEXT;
ALTER TABLE authorization_code ADD COLUMN signed_in_on INTEGER;
ALTER TABLE token_family ADD COLUMN scope TEXT NOT NULL DEFAULT '';
CREATE TABLE signing_key (
  key INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, sealed BLOB NOT NULL, created_on INTEGER NOT NULL
);
