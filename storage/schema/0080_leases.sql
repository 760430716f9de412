-- Who does what of the work that one node does at a time. Only stores that several nodes can reach have rows. `epoch`
-- counts the holders: what a former one writes is refused. `instance` names the holder's process, `since` and `until`
-- are in ms by the clock of the store.
CREATE TABLE lease (
  name TEXT PRIMARY KEY, node TEXT NOT NULL, instance TEXT NOT NULL, epoch INTEGER NOT NULL, since INTEGER NOT NULL,
  until INTEGER NOT NULL
);
-- So another epoch is another key: only who takes the lease over waits for the transactions of its holder.
CREATE UNIQUE INDEX lease_epoch ON lease (name, epoch);
