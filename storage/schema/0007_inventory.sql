-- A deleted device is kept, invisible, until its messages are removed (reference 6.1).
ALTER TABLE device ADD COLUMN deleted_on INTEGER;
-- The external id of a device that belongs to a connector, and the id its vendor gave it.
ALTER TABLE device ADD COLUMN eid TEXT;
ALTER TABLE device ADD COLUMN vdid TEXT;
ALTER TABLE device ADD COLUMN cloud_authorization TEXT NOT NULL DEFAULT 'NO_AUTHORIZATION';
-- The client certificate it registered with, as DER.
ALTER TABLE device ADD COLUMN certificate BLOB;
CREATE INDEX device_deleted ON device (deleted_on) WHERE deleted_on IS NOT NULL;
CREATE UNIQUE INDEX device_by_eid ON device (owner, device_type, eid) WHERE eid IS NOT NULL AND deleted_on IS NULL;
CREATE UNIQUE INDEX device_by_vdid ON device (device_type, vdid) WHERE vdid IS NOT NULL AND deleted_on IS NULL;
CREATE TABLE device_share (
  key INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, device INTEGER NOT NULL REFERENCES device ON DELETE CASCADE,
  email TEXT NOT NULL COLLATE NOCASE, user INTEGER REFERENCES user, status TEXT NOT NULL, shared_on INTEGER NOT NULL,
  code_hash BLOB UNIQUE
);
CREATE UNIQUE INDEX device_share_once ON device_share (device, email) WHERE status <> 'REJECTED';
CREATE INDEX device_share_by_email ON device_share (email, status);
CREATE INDEX device_share_by_user ON device_share (user, status);
-- An availability that a connection gives ends with the daemon; one that the device has set itself does not.
ALTER TABLE presence ADD COLUMN is_connected INTEGER NOT NULL DEFAULT 0;
UPDATE presence SET is_connected = 1 WHERE availability = 'online';
ALTER TABLE device_type ADD COLUMN has_cloud_connector INTEGER NOT NULL DEFAULT 0;
ALTER TABLE device_type ADD COLUMN last_updated INTEGER NOT NULL DEFAULT 0;
