-- What was stored of the readings of a third party, for each account there that the device was linked with. It outlives
-- the link. `account` is the SHA-256 of the account's id in hexadecimal digits, or empty when the id is not known.
CREATE TABLE connector_progress (
  device INTEGER NOT NULL REFERENCES device ON DELETE CASCADE, account TEXT NOT NULL, progress TEXT NOT NULL,
  changed_on INTEGER NOT NULL, PRIMARY KEY (device, account)
);
-- Links whose subscription a crash of an earlier version cut off: their devices were never authorized.
DELETE FROM connector_link WHERE device IN (SELECT key FROM device WHERE cloud_authorization <> 'AUTHORIZED');
-- The id of the application whose token began the authorization; NULL is none.
ALTER TABLE connector_state ADD COLUMN application TEXT;
