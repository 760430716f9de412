-- As in 0145_my_data.sql.
CREATE TABLE export_device (
  device BIGINT NOT NULL, export BIGINT NOT NULL REFERENCES export ON DELETE CASCADE, start_ms BIGINT NOT NULL,
  end_ms BIGINT NOT NULL, PRIMARY KEY (device, export)
);
CREATE INDEX export_device_by_export ON export_device (export);
INSERT INTO export_device (device, export, start_ms, end_ms)
  SELECT DISTINCT d.value::text::bigint, e.key, (e.request::json->>'start_ms')::bigint, (e.request::json->>'end_ms')::bigint
  FROM export AS e, json_array_elements(e.plan::json->'groups') AS g, json_array_elements(g.value->1) AS d
  WHERE e.status IN ('Received', 'InProgress', 'Success', 'Served');
ALTER TABLE table_import ADD COLUMN application BIGINT;
