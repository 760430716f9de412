-- Wills of MQTT: of connections, and of devices that have gone and whose will waits for its delay. `topic` is empty when
-- the will is a message of the device; `properties` are those of MQTT 5.0 that are forwarded, encoded. `is_away`: the
-- connection has ended, and the will is due at `due_on`.
CREATE TABLE mqtt_will (
  device INTEGER NOT NULL, is_away INTEGER NOT NULL, topic BLOB NOT NULL, payload BLOB NOT NULL, qos INTEGER NOT NULL,
  retain INTEGER NOT NULL, properties BLOB NOT NULL, expiry_seconds INTEGER, delay_seconds INTEGER NOT NULL,
  due_on INTEGER, PRIMARY KEY (device, is_away)
);
