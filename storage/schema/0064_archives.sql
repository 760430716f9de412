-- The archive of all that the service knows of a user (reference 5.8): the latest one that the user asked for.
CREATE TABLE user_archive (
  user INTEGER PRIMARY KEY REFERENCES user ON DELETE CASCADE, id TEXT NOT NULL UNIQUE, status TEXT NOT NULL,
  created_on INTEGER NOT NULL, expires_on INTEGER, file_size INTEGER, md5 TEXT, messages INTEGER NOT NULL,
  is_whole INTEGER NOT NULL
);
CREATE INDEX user_archive_by_status ON user_archive (status, created_on);
