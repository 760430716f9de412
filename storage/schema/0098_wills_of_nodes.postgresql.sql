-- As 0098_wills_of_nodes.sql.
ALTER TABLE mqtt_will ADD COLUMN node TEXT NOT NULL DEFAULT '';
ALTER TABLE mqtt_will DROP CONSTRAINT mqtt_will_pkey;
ALTER TABLE mqtt_will ADD PRIMARY KEY (device, is_away, node);
