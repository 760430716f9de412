-- How busy the service was: a sample every five minutes, those of a day (reference 27.21). Counts are of those minutes.
CREATE TABLE operator_sample (
  at INTEGER PRIMARY KEY, seconds INTEGER NOT NULL, messages INTEGER NOT NULL, connections INTEGER NOT NULL,
  commits INTEGER NOT NULL, commit_us INTEGER NOT NULL, refusals INTEGER NOT NULL, store_bytes INTEGER NOT NULL
);
