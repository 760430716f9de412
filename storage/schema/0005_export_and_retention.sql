CREATE TABLE export (
  key INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, user INTEGER, application INTEGER, trial TEXT,
  request TEXT NOT NULL, plan TEXT NOT NULL, status TEXT NOT NULL, created_on INTEGER NOT NULL, head INTEGER NOT NULL,
  written TEXT, expected_messages INTEGER, total_messages INTEGER NOT NULL, file_size INTEGER, md5 TEXT,
  expires_on INTEGER, last_error TEXT
);
CREATE INDEX export_by_user ON export (user, key);
CREATE INDEX export_by_application ON export (application, key);
CREATE INDEX export_to_do ON export (status, key);
ALTER TABLE device_type ADD COLUMN retention_days INTEGER;
CREATE TABLE retention (name TEXT PRIMARY KEY, position INTEGER NOT NULL);
