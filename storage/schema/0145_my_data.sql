-- The devices of exports that go on or are kept, with the times of their messages: what a deletion of messages ends.
CREATE TABLE export_device (
  device INTEGER NOT NULL, export INTEGER NOT NULL REFERENCES export ON DELETE CASCADE, start_ms INTEGER NOT NULL,
  end_ms INTEGER NOT NULL, PRIMARY KEY (device, export)
);
CREATE INDEX export_device_by_export ON export_device (export);
INSERT INTO export_device (device, export, start_ms, end_ms)
  SELECT DISTINCT d.value, e.key, json_extract(e.request, '$.start_ms'), json_extract(e.request, '$.end_ms')
  FROM export AS e, json_each(e.plan, '$.groups') AS g, json_each(g.value, '$[1]') AS d
  WHERE e.status IN ('Received', 'InProgress', 'Success', 'Served');
-- The application through which a table was brought: without a grant, the import ends. NULL in one from before.
ALTER TABLE table_import ADD COLUMN application INTEGER;
