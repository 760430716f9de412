-- A device type's cloud connector: which plug-in it is, and its terms (sealed: they hold the client secret).
CREATE TABLE connector (device_type INTEGER PRIMARY KEY REFERENCES device_type, plugin TEXT NOT NULL, terms BLOB NOT NULL);
-- A device's authorization at the third party, sealed. `account` is the SHA-256 of the account's id there.
CREATE TABLE connector_link (
  device INTEGER PRIMARY KEY REFERENCES device ON DELETE CASCADE, device_type INTEGER NOT NULL REFERENCES device_type,
  account BLOB, sealed BLOB NOT NULL, linked_on INTEGER NOT NULL, next_fetch_on INTEGER NOT NULL
);
CREATE INDEX connector_link_by_account ON connector_link (device_type, account);
CREATE INDEX connector_link_by_fetch ON connector_link (device_type, next_fetch_on);
-- Devices that another device's link speaks for.
CREATE TABLE connector_sub_device (
  device INTEGER PRIMARY KEY REFERENCES device ON DELETE CASCADE,
  holder INTEGER NOT NULL REFERENCES device ON DELETE CASCADE
);
CREATE INDEX connector_sub_device_by_holder ON connector_sub_device (holder);
-- One-time states of authorizations under way, kept as their SHA-256.
CREATE TABLE connector_state (
  key INTEGER PRIMARY KEY, hash BLOB NOT NULL UNIQUE, device INTEGER NOT NULL REFERENCES device ON DELETE CASCADE,
  user INTEGER NOT NULL REFERENCES user, referer TEXT NOT NULL, sealed BLOB NOT NULL, expires_on INTEGER NOT NULL
);
CREATE INDEX connector_state_by_device ON connector_state (device);
CREATE INDEX connector_state_by_expiry ON connector_state (expires_on);
