-- MQTT sessions that outlive a connection: at most one of each device.
-- `expires_on` is NULL while the device is connected. The Actions up to `actions_after` are in the queue already, or were
-- never wanted; NULL: none are wanted. Deliveries up to `sent_until` may have been sent before.
CREATE TABLE mqtt_session (
  device INTEGER PRIMARY KEY, client_id TEXT NOT NULL, expiry_seconds INTEGER NOT NULL, expires_on INTEGER,
  actions_after INTEGER, sent_until INTEGER NOT NULL
);
CREATE INDEX mqtt_session_by_expiry ON mqtt_session (expires_on);
CREATE TABLE mqtt_subscription (
  device INTEGER NOT NULL, filter BLOB NOT NULL, qos INTEGER NOT NULL, no_local INTEGER NOT NULL,
  retain_as_published INTEGER NOT NULL, subscription_id INTEGER NOT NULL, PRIMARY KEY (device, filter)
);
-- What waits for the device, in the order of `number`. `is_released`: its PUBREC has come, so only PUBREL may follow.
CREATE TABLE mqtt_delivery (
  device INTEGER NOT NULL, number INTEGER NOT NULL, topic BLOB NOT NULL, payload BLOB NOT NULL, qos INTEGER NOT NULL,
  is_released INTEGER NOT NULL, retain INTEGER NOT NULL, properties BLOB NOT NULL, expires_on INTEGER,
  subscription_ids TEXT NOT NULL, PRIMARY KEY (device, number)
);
-- Packet ids of QoS 2 messages that are stored and not released by the device.
CREATE TABLE mqtt_received (device INTEGER NOT NULL, packet_id INTEGER NOT NULL, PRIMARY KEY (device, packet_id));
