-- Failed messages that are read again after a new version of the Manifest. `ts`: the time that the device gave it; NULL:
-- what the Manifest cannot mend, or of a version before.
ALTER TABLE failed_message ADD COLUMN ts INTEGER;
-- How far the reading is, one for each type: up to `position`, `looked` messages, of which `fit` are messages now.
CREATE TABLE failed_reading (
  device_type INTEGER PRIMARY KEY REFERENCES device_type ON DELETE CASCADE, version INTEGER NOT NULL,
  position INTEGER NOT NULL, looked INTEGER NOT NULL, fit INTEGER NOT NULL, began_on INTEGER NOT NULL,
  ended_on INTEGER
);
