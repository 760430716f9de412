-- Forwarding (reference 30). `forward` is an entry of the settings at work: everything up to `mark` is sent, but for the
-- `gaps`, a JSON list of [after, upto]. `batch` is the id of the last batch that the upstream has stored, `pending` the
-- one that may be under way (JSON). `actions_after`: the position of the upstream's last Action that is here.
CREATE TABLE forward (
  name TEXT PRIMARY KEY, target TEXT NOT NULL, store TEXT, mark INTEGER NOT NULL, gaps TEXT NOT NULL,
  batch TEXT NOT NULL, pending TEXT, actions_after INTEGER, changed_on INTEGER NOT NULL
);
-- A Trunkline that forwards to this one. `ranges`: what it has sent of its log, a JSON list of [after, upto].
-- `accepts`: the next batch may be of another copy of the store.
CREATE TABLE edge (
  key INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, owner INTEGER NOT NULL REFERENCES user, token_hash BLOB NOT NULL UNIQUE,
  organization INTEGER REFERENCES organization, devices_max INTEGER NOT NULL, store TEXT, batch TEXT, batch_upto INTEGER,
  ranges TEXT NOT NULL, accepts INTEGER NOT NULL, messages INTEGER NOT NULL, dropped INTEGER NOT NULL,
  actions_upto INTEGER, created_on INTEGER NOT NULL, seen_on INTEGER
);
CREATE INDEX edge_by_owner ON edge (owner);
-- A device of such a store, `remote` there, and what it is here; NULL when it was deleted here. `path`: the stores that
-- its messages have come through, the first one first (JSON).
CREATE TABLE edge_device (
  edge INTEGER NOT NULL REFERENCES edge ON DELETE CASCADE, remote TEXT NOT NULL,
  device INTEGER UNIQUE REFERENCES device ON DELETE SET NULL, path TEXT NOT NULL, PRIMARY KEY (edge, remote)
);
-- The mids that the messages of a batch have there, 16 bytes each, by the positions here, which follow each other.
CREATE TABLE edge_batch (
  first INTEGER PRIMARY KEY, last INTEGER NOT NULL, edge INTEGER NOT NULL REFERENCES edge ON DELETE CASCADE,
  remote_first INTEGER NOT NULL, remote_last INTEGER NOT NULL, mids BLOB NOT NULL
);
CREATE INDEX edge_batch_by_remote ON edge_batch (edge, remote_first);
