ALTER TABLE device_type ADD COLUMN owner INTEGER REFERENCES user;
ALTER TABLE device_type ADD COLUMN vid TEXT NOT NULL DEFAULT '0';
-- NULL is as published.
ALTER TABLE device_type ADD COLUMN in_store INTEGER;
ALTER TABLE device_type ADD COLUMN issuer_dn TEXT;
-- The name without regard to case, as searches compare it.
ALTER TABLE device_type ADD COLUMN folded_name TEXT NOT NULL DEFAULT '';
UPDATE device_type SET folded_name = lower(name);
UPDATE device_type SET last_updated = coalesce(
  (SELECT max(m.created_on) FROM manifest AS m WHERE m.device_type = device_type.key AND m.approved = 1), 0
);
CREATE TABLE device_type_tag (
  tag TEXT NOT NULL, device_type INTEGER NOT NULL REFERENCES device_type ON DELETE CASCADE,
  PRIMARY KEY (tag, device_type)
);
CREATE INDEX device_type_tag_by_type ON device_type_tag (device_type);
INSERT INTO device_type_tag SELECT DISTINCT entry.value, t.key FROM device_type AS t, json_each(t.tags) AS entry;
CREATE INDEX failed_message_by_device ON failed_message (device, position);
