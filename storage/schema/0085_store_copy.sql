-- How far the copy of another store into this one is (storage/store_copy.py); no rows: none is under way. The row with
-- the empty name is of the other store: `last_key` tells which one it is, `digest` what was in it.
CREATE TABLE store_copy (
  name TEXT PRIMARY KEY, last_key BLOB, copied INTEGER NOT NULL, digest BLOB NOT NULL, is_done INTEGER NOT NULL
);
