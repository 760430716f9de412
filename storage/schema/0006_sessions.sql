CREATE TABLE session (
  hash BLOB PRIMARY KEY, user INTEGER NOT NULL REFERENCES user ON DELETE CASCADE, password BLOB NOT NULL,
  created_on INTEGER NOT NULL, expires_on INTEGER NOT NULL
);
CREATE INDEX session_by_user ON session (user);
CREATE INDEX session_by_expiry ON session (expires_on);
