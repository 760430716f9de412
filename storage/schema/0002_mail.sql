CREATE TABLE mail (
  key INTEGER PRIMARY KEY, message_id TEXT NOT NULL UNIQUE, kind TEXT NOT NULL,
  recipient TEXT NOT NULL COLLATE NOCASE, cause TEXT NOT NULL, content BLOB, created_on INTEGER NOT NULL,
  next_on INTEGER, attempts INTEGER NOT NULL, outcome TEXT, last_error TEXT
);
CREATE INDEX mail_waiting ON mail (next_on, key) WHERE next_on IS NOT NULL;
CREATE INDEX mail_done ON mail (created_on) WHERE next_on IS NULL;
CREATE INDEX mail_by_recipient ON mail (kind, recipient, created_on);
CREATE INDEX mail_by_cause ON mail (kind, cause, created_on);
