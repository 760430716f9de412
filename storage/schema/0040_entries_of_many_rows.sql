-- An entry says where many rows of a device are (storage/log_index.py). The column `indexed` of the log is not used any more.
DROP INDEX IF EXISTS message_by_time;
DROP INDEX IF EXISTS message_by_arrival;
DROP INDEX IF EXISTS action_by_time;
CREATE TABLE message_entry (
  key INTEGER PRIMARY KEY, device INTEGER NOT NULL, upto INTEGER NOT NULL, first_ts INTEGER NOT NULL,
  last_ts INTEGER NOT NULL, ordered INTEGER NOT NULL, number INTEGER NOT NULL, positions TEXT NOT NULL
);
CREATE INDEX message_entry_by_time ON message_entry (device, first_ts, key, last_ts);
CREATE INDEX message_entry_by_arrival ON message_entry (device, upto);
CREATE INDEX message_entry_by_step ON message_entry (upto);
CREATE TABLE action_entry (
  key INTEGER PRIMARY KEY, device INTEGER NOT NULL, upto INTEGER NOT NULL, first_ts INTEGER NOT NULL,
  last_ts INTEGER NOT NULL, ordered INTEGER NOT NULL, number INTEGER NOT NULL, positions TEXT NOT NULL
);
CREATE INDEX action_entry_by_time ON action_entry (device, first_ts, key, last_ts);
CREATE INDEX action_entry_by_arrival ON action_entry (device, upto);
CREATE INDEX action_entry_by_step ON action_entry (upto);
-- The next start makes the entries of all rows.
UPDATE counter SET value = 0 WHERE name = 'indexed';
