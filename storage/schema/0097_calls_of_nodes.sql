-- Several nodes count the calls of one caller. The rows of the last minute are made anew.
DROP TABLE recent_call;
CREATE TABLE recent_call (
  name TEXT NOT NULL, at_ms INTEGER NOT NULL, calls INTEGER NOT NULL, node TEXT NOT NULL, PRIMARY KEY (name, at_ms, node)
);
CREATE INDEX recent_call_by_time ON recent_call (at_ms);
