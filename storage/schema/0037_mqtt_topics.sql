-- Retained messages of the open topic space. `properties` are those of MQTT 5.0, encoded.
CREATE TABLE mqtt_retained (
  topic BLOB PRIMARY KEY, payload BLOB NOT NULL, qos INTEGER NOT NULL, properties BLOB NOT NULL, expires_on INTEGER
);
