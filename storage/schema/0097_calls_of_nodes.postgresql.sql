-- As in 0097_calls_of_nodes.sql.
DROP TABLE recent_call;
CREATE TABLE recent_call (
  name TEXT NOT NULL, at_ms BIGINT NOT NULL, calls BIGINT NOT NULL, node TEXT NOT NULL, PRIMARY KEY (name, at_ms, node)
);
CREATE INDEX recent_call_by_time ON recent_call (at_ms);
