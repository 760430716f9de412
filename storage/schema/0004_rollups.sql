CREATE TABLE field (key INTEGER PRIMARY KEY, path TEXT NOT NULL UNIQUE);
-- Clustered by its key: a range of buckets is read in one run. Numbers keep the form they came in.
CREATE TABLE rollup (
  device INTEGER NOT NULL, field INTEGER NOT NULL, level TEXT NOT NULL, bucket INTEGER NOT NULL, count INTEGER NOT NULL,
  numbers INTEGER NOT NULL, min, max, sum, mean_high REAL, mean_low REAL, m2 REAL,
  PRIMARY KEY (device, field, level, bucket)
) WITHOUT ROWID;
