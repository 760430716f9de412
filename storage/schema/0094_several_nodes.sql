-- Several daemons that serve one store. On SQLite one serves, and these tables stay empty.
-- The changes that every node hears of, in the order of their numbers, which is that of the commits and has no gaps
-- (storage/facts.py). `node` is the process that told it, by its instance.
CREATE TABLE fact (
  number INTEGER PRIMARY KEY, is_fencing INTEGER NOT NULL, kind TEXT NOT NULL, value BLOB NOT NULL,
  content BLOB NOT NULL, node TEXT NOT NULL, at INTEGER NOT NULL DEFAULT 0
);
-- The persistent connections of devices: `number` is that of the connection on its node. Of those with the device's own
-- token (is_exclusive) there is one for each device.
CREATE TABLE device_connection (
  node TEXT NOT NULL, number INTEGER NOT NULL, device INTEGER NOT NULL, is_exclusive INTEGER NOT NULL,
  PRIMARY KEY (node, number)
);
CREATE INDEX device_connection_by_device ON device_connection (device);
-- The version of the daemon that has the lease of a node.
ALTER TABLE lease ADD COLUMN version TEXT;
