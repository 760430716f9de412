-- A row of the log comes without an entry in an index; entries are made for many rows at once (storage/messages.py).
ALTER TABLE message ADD COLUMN indexed INTEGER NOT NULL DEFAULT 1;
ALTER TABLE action ADD COLUMN indexed INTEGER NOT NULL DEFAULT 1;
DROP INDEX message_by_time;
DROP INDEX message_by_arrival;
DROP INDEX action_by_time;
CREATE INDEX message_by_time ON message (device, ts) WHERE indexed = 1;
CREATE INDEX message_by_arrival ON message (device) WHERE indexed = 1;
CREATE INDEX action_by_time ON action (device, ts) WHERE indexed = 1;
INSERT INTO counter (name, value) SELECT 'indexed', value FROM counter WHERE name = 'head';
