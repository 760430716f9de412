-- One-time codes of mails that lead to a new password. The mark is of the password that was in force.
CREATE TABLE password_reset (
  hash BLOB PRIMARY KEY, user INTEGER REFERENCES user ON DELETE CASCADE, password BLOB NOT NULL,
  expires_on INTEGER NOT NULL
);
CREATE INDEX password_reset_by_user ON password_reset (user);
CREATE INDEX password_reset_by_expiry ON password_reset (expires_on);
CREATE TABLE invitation (
  email TEXT NOT NULL COLLATE NOCASE PRIMARY KEY, hash BLOB NOT NULL UNIQUE,
  organization INTEGER REFERENCES organization ON DELETE SET NULL, role TEXT, expires_on INTEGER NOT NULL
);
-- Who a person is to an external identity provider; the issuer, because an operator may rename a provider.
CREATE TABLE external_identity (
  issuer TEXT NOT NULL, subject TEXT NOT NULL, user INTEGER NOT NULL REFERENCES user ON DELETE CASCADE,
  PRIMARY KEY (issuer, subject)
);
CREATE INDEX external_identity_by_user ON external_identity (user);
CREATE TABLE external_sign_in (
  hash BLOB PRIMARY KEY, browser BLOB NOT NULL, content BLOB NOT NULL, expires_on INTEGER NOT NULL
);
CREATE INDEX external_sign_in_by_expiry ON external_sign_in (expires_on);
CREATE INDEX token_family_by_user ON token_family (user);
