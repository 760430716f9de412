-- Retained messages of the open topic space. `properties` are those of MQTT 5.0, encoded.
CREATE TABLE mqtt_retained (
  topic BLOB PRIMARY KEY, payload BLOB NOT NULL, qos INTEGER NOT NULL, properties BLOB NOT NULL, expires_on INTEGER
);
-- Who may use which open topics; `kind` is device, device_type or user (the owner), `subject` its key.
CREATE TABLE topic_rule (
  kind TEXT NOT NULL, subject INTEGER NOT NULL, topic TEXT NOT NULL, publish INTEGER NOT NULL,
  subscribe INTEGER NOT NULL, PRIMARY KEY (kind, subject, topic)
);
