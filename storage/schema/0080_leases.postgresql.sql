-- Who does what of the work that one node does at a time. Only stores that several nodes can reach have rows. `epoch`
-- counts the holders: what a former one writes is refused. `instance` names the holder's process, `since` and `until`
-- are in ms by the clock of the store.
CREATE TABLE lease (
  name TEXT PRIMARY KEY, node TEXT NOT NULL, instance TEXT NOT NULL, epoch BIGINT NOT NULL, since BIGINT NOT NULL,
  until BIGINT NOT NULL
);
-- So another epoch is another key: only who takes the lease over waits for the transactions of its holder.
CREATE UNIQUE INDEX lease_epoch ON lease (name, epoch);
-- Within a transaction: nobody takes the lease before its end. Who does not have it any more gets an error.
CREATE FUNCTION require_lease(wanted TEXT, holder TEXT, number BIGINT) RETURNS TEXT LANGUAGE plpgsql AS $$ BEGIN
  PERFORM 1 FROM lease WHERE name = wanted AND node = holder AND epoch = number FOR KEY SHARE; IF NOT FOUND THEN
  RAISE EXCEPTION USING ERRCODE = 'TL001', MESSAGE = 'another node has the lease'; END IF; RETURN wanted; END $$;
