-- Devices that an MQTT client announces for Home Assistant (reference 16.9): `source` is the client, `identity` as it
-- calls the device. `device`: the one that was made when it was accepted. `components`: JSON.
CREATE TABLE found_device (
  key INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, source INTEGER NOT NULL REFERENCES device ON DELETE CASCADE,
  identity TEXT NOT NULL, name TEXT NOT NULL, model TEXT NOT NULL, manufacturer TEXT NOT NULL, status TEXT NOT NULL,
  device INTEGER REFERENCES device ON DELETE SET NULL, components TEXT NOT NULL, first_on INTEGER NOT NULL,
  last_on INTEGER NOT NULL, UNIQUE (source, identity)
);
CREATE INDEX found_device_by_device ON found_device (device);
