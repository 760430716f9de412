-- How a session was begun (`password`, `code` or `provider`), from where, and when it was last used.
ALTER TABLE session ADD COLUMN proof TEXT NOT NULL DEFAULT 'password';
ALTER TABLE session ADD COLUMN address TEXT NOT NULL DEFAULT '';
ALTER TABLE session ADD COLUMN user_agent TEXT NOT NULL DEFAULT '';
ALTER TABLE session ADD COLUMN used_on INTEGER NOT NULL DEFAULT 0;
-- A user's second factor (RFC 6238). `secret` is sealed. No code of `last_step` or earlier is good any more.
CREATE TABLE second_factor (
  user INTEGER PRIMARY KEY REFERENCES user ON DELETE CASCADE, secret BLOB NOT NULL, last_step INTEGER NOT NULL,
  created_on INTEGER NOT NULL
);
CREATE TABLE recovery_code (
  user INTEGER NOT NULL REFERENCES second_factor ON DELETE CASCADE, hash BLOB NOT NULL, PRIMARY KEY (user, hash)
);
