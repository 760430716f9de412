-- As in 0092_partitions_by_two.postgresql.sql; and whatever keeps a partition from being made, such as an event trigger of
-- another application, is a warning as long as there is room for a position in the last one. The time that a statement
-- waits for locks is afterwards as it was before.
CREATE OR REPLACE FUNCTION message_partitions_from(head BIGINT) RETURNS BIGINT LANGUAGE plpgsql AS $$ DECLARE
  size CONSTANT BIGINT := 10000000; there BIGINT; place BIGINT; tries INT := 0;
  patience CONSTANT TEXT := current_setting('lock_timeout'); BEGIN
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
      WHEN disk_full OR out_of_memory THEN
        RAISE;
      WHEN OTHERS THEN
        IF there <= head + 1 THEN RAISE; END IF;
        RAISE WARNING 'no partition for further messages: %', SQLERRM;
        EXIT;
    END;
  END LOOP;
  PERFORM set_config('lock_timeout', patience, TRUE);
  RETURN there;
END $$;
