-- An authorization that is being finished: revoking the device's authorization removes it, and then nothing is linked.
ALTER TABLE connector_state ADD COLUMN is_taken INTEGER NOT NULL DEFAULT 0;
-- Of several nodes: what a notification asks of a third party, for the node that asks. `requests` is sealed; without them,
-- the plug-in names the requests.
CREATE TABLE connector_job (
  key INTEGER PRIMARY KEY, device_type INTEGER NOT NULL, device INTEGER NOT NULL, requests BLOB, since INTEGER NOT NULL
);
CREATE INDEX connector_job_by_type ON connector_job (device_type, key);
CREATE INDEX connector_job_by_device ON connector_job (device);
-- Of several nodes: the process that stores readings of a device or changes its link (standing), or changes the contents
-- of the link (contents).
CREATE TABLE connector_turn (
  device INTEGER NOT NULL, kind TEXT NOT NULL, holder TEXT NOT NULL, PRIMARY KEY (device, kind)
);
