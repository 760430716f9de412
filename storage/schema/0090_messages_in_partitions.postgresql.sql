-- The messages are in partitions of 10 million positions each: old ones are dropped as files, not row by row
-- (storage/engines/postgresql_partitions.py). The table that was there is the first partition, up to the end of the
-- range that is written now. Its rows are read once, to see that they belong there, and stay where they are.
ALTER TABLE message RENAME TO message_0;
ALTER INDEX message_pkey RENAME TO message_0_pkey;
CREATE TABLE message (LIKE message_0 INCLUDING DEFAULTS) PARTITION BY RANGE (position);
ALTER TABLE message ADD PRIMARY KEY (position);
-- The partitions with their first positions and the ones behind them, in order.
CREATE FUNCTION message_partitions() RETURNS TABLE (name TEXT, first BIGINT, behind BIGINT) LANGUAGE sql STABLE AS $$
  SELECT relname::text, coalesce(substring(bounds FROM 'FROM \(''(\d+)''\)')::bigint, 0),
    substring(bounds FROM 'TO \(''(\d+)''\)')::bigint
  FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid
  CROSS JOIN LATERAL pg_get_expr(relpartbound, inhrelid) AS bounds
  WHERE inhparent = 'message'::regclass ORDER BY 3 $$;
-- Have partitions for a position and for the range behind its own; return the position behind all of them. Somebody may
-- hold a lock that does not let it: they are made later, and the range ahead is enough until then.
CREATE FUNCTION message_partitions_from(head BIGINT) RETURNS BIGINT LANGUAGE plpgsql AS $$ DECLARE
  size CONSTANT BIGINT := 10000000; there BIGINT; place BIGINT; BEGIN
  SELECT coalesce(max(behind), 0) INTO there FROM message_partitions();
  PERFORM set_config('lock_timeout', '1s', TRUE);
  BEGIN
    WHILE there < (head / size + 2) * size LOOP
      place := greatest(there, head / size * size);
      EXECUTE format('CREATE TABLE message_%s (LIKE message INCLUDING ALL)', place / size);
      EXECUTE format('ALTER TABLE message ATTACH PARTITION message_%s FOR VALUES FROM (%s) TO (%s)', place / size, place,
        place + size);
      there := place + size;
    END LOOP;
  EXCEPTION WHEN lock_not_available THEN
    SELECT coalesce(max(behind), 0) INTO there FROM message_partitions();
  END;
  PERFORM set_config('lock_timeout', '0', TRUE);
  RETURN there;
END $$;
DO $$ BEGIN EXECUTE format('ALTER TABLE message ATTACH PARTITION message_0 FOR VALUES FROM (MINVALUE) TO (%s)',
  greatest((SELECT last_value FROM log), (SELECT max(position) FROM message_0)) / 10000000 * 10000000 + 10000000); END $$;
SELECT message_partitions_from(greatest((SELECT last_value FROM log), (SELECT max(position) FROM message_0)));
