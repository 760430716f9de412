-- As in 0090_messages_in_partitions.postgresql.sql; and when somebody else makes the same partition at the same time, the
-- one that comes second looks again, and goes on. A table of that name that is no partition is still an error.
CREATE OR REPLACE FUNCTION message_partitions_from(head BIGINT) RETURNS BIGINT LANGUAGE plpgsql AS $$ DECLARE
  size CONSTANT BIGINT := 10000000; there BIGINT; place BIGINT; tries INT := 0; BEGIN
  PERFORM set_config('lock_timeout', '1s', TRUE);
  LOOP
    SELECT coalesce(max(behind), 0) INTO there FROM message_partitions();
    EXIT WHEN there >= (head / size + 2) * size;
    BEGIN
      place := greatest(there, head / size * size);
      EXECUTE format('CREATE TABLE message_%s (LIKE message INCLUDING ALL)', place / size);
      EXECUTE format('ALTER TABLE message ATTACH PARTITION message_%s FOR VALUES FROM (%s) TO (%s)', place / size, place,
        place + size);
    EXCEPTION
      WHEN lock_not_available THEN
        SELECT coalesce(max(behind), 0) INTO there FROM message_partitions();
        EXIT;
      WHEN duplicate_table OR unique_violation OR deadlock_detected OR invalid_object_definition THEN
        tries := tries + 1;
        IF tries > 3 THEN RAISE; END IF;
    END;
  END LOOP;
  PERFORM set_config('lock_timeout', '0', TRUE);
  RETURN there;
END $$;
