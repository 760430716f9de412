-- Counters of rate limits and quotas, by name: what was used in the day or month that ends at until_ms.
CREATE TABLE tally (
  name TEXT PRIMARY KEY, since_ms INTEGER NOT NULL, until_ms INTEGER NOT NULL, used INTEGER NOT NULL
);
CREATE INDEX tally_by_end ON tally (until_ms);
-- The calls of the last minute, as so many up to each moment at which they were saved.
CREATE TABLE recent_call (
  name TEXT NOT NULL, at_ms INTEGER NOT NULL, calls INTEGER NOT NULL, PRIMARY KEY (name, at_ms)
);
CREATE INDEX recent_call_by_time ON recent_call (at_ms);
