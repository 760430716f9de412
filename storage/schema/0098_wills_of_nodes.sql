-- Of several nodes: the one whose connection the will is of, or that publishes it. Empty with one daemon.
ALTER TABLE mqtt_will RENAME TO mqtt_will_before;
CREATE TABLE mqtt_will (
  device INTEGER NOT NULL, is_away INTEGER NOT NULL, topic BLOB NOT NULL, payload BLOB NOT NULL, qos INTEGER NOT NULL,
  retain INTEGER NOT NULL, properties BLOB NOT NULL, expiry_seconds INTEGER, delay_seconds INTEGER NOT NULL,
  due_on INTEGER, node TEXT NOT NULL DEFAULT '', PRIMARY KEY (device, is_away, node)
);
INSERT INTO mqtt_will (device, is_away, topic, payload, qos, retain, properties, expiry_seconds, delay_seconds, due_on)
  SELECT device, is_away, topic, payload, qos, retain, properties, expiry_seconds, delay_seconds, due_on
  FROM mqtt_will_before;
DROP TABLE mqtt_will_before;
