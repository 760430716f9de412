CREATE TABLE token_family (
  key INTEGER PRIMARY KEY, application INTEGER NOT NULL REFERENCES application, user INTEGER NOT NULL REFERENCES user,
  method TEXT NOT NULL, created_on INTEGER NOT NULL, usable_until INTEGER NOT NULL
);
CREATE INDEX token_family_by_end ON token_family (usable_until);
ALTER TABLE token ADD COLUMN family INTEGER REFERENCES token_family ON DELETE CASCADE;
CREATE INDEX token_by_family ON token (family);
CREATE INDEX token_by_expiry ON token (expires_on);
CREATE TABLE refresh_token (
  hash BLOB PRIMARY KEY, family INTEGER NOT NULL REFERENCES token_family ON DELETE CASCADE,
  usable_until INTEGER NOT NULL, used_on INTEGER
);
CREATE INDEX refresh_token_by_family ON refresh_token (family);
CREATE INDEX refresh_token_by_end ON refresh_token (usable_until);
CREATE TABLE authorization_code (
  hash BLOB PRIMARY KEY, application INTEGER NOT NULL REFERENCES application,
  user INTEGER NOT NULL REFERENCES user, redirect_uri TEXT NOT NULL, code_challenge TEXT,
  expires_on INTEGER NOT NULL, used_on INTEGER, family INTEGER REFERENCES token_family ON DELETE SET NULL
);
CREATE INDEX authorization_code_by_family ON authorization_code (family);
CREATE INDEX authorization_code_by_expiry ON authorization_code (expires_on);
CREATE TABLE device_code (
  hash BLOB PRIMARY KEY, user_code TEXT NOT NULL UNIQUE, application INTEGER NOT NULL REFERENCES application,
  interval_seconds INTEGER NOT NULL, expires_on INTEGER NOT NULL, state TEXT NOT NULL,
  user INTEGER REFERENCES user, polled_on INTEGER
);
CREATE INDEX device_code_by_expiry ON device_code (expires_on);
CREATE TABLE application_properties (
  user INTEGER NOT NULL REFERENCES user, application INTEGER NOT NULL REFERENCES application,
  properties TEXT NOT NULL, PRIMARY KEY (user, application)
);
