-- Deletions of messages by their owners (user: NULL when that one is gone): those of a device with start_ms <= ts <= end_ms up to the position `head`.
CREATE TABLE erasure (
  key INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, device INTEGER NOT NULL, user INTEGER,
  start_ms INTEGER NOT NULL, end_ms INTEGER NOT NULL, head INTEGER NOT NULL, deleted INTEGER NOT NULL,
  asked_on INTEGER NOT NULL, ended_on INTEGER
);
CREATE INDEX erasure_by_user ON erasure (user, key);
CREATE INDEX erasure_by_device ON erasure (device);
CREATE INDEX erasure_open ON erasure (key) WHERE ended_on IS NULL;
CREATE INDEX erasure_ended ON erasure (ended_on) WHERE ended_on IS NOT NULL;
