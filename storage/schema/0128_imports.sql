-- Tables of messages that users bring. `position`, `line`: how far the file was read. `wrong_lines`: JSON, the first ones.
CREATE TABLE table_import (
  key INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, user INTEGER NOT NULL, device INTEGER, device_type INTEGER NOT NULL,
  header TEXT NOT NULL, size INTEGER NOT NULL, position INTEGER NOT NULL, line INTEGER NOT NULL, stored INTEGER NOT NULL,
  present INTEGER NOT NULL, wrong INTEGER NOT NULL, wrong_lines TEXT NOT NULL, reason TEXT NOT NULL,
  asked_on INTEGER NOT NULL, ended_on INTEGER
);
CREATE INDEX table_import_by_user ON table_import (user, key);
CREATE INDEX table_import_open ON table_import (key) WHERE ended_on IS NULL;
CREATE INDEX table_import_ended ON table_import (ended_on) WHERE ended_on IS NOT NULL;
