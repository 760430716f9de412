-- As in 0094_several_nodes.sql.
CREATE TABLE fact (
  number BIGINT PRIMARY KEY, is_fencing BIGINT NOT NULL, kind TEXT NOT NULL, value BYTEA NOT NULL,
  content BYTEA NOT NULL, node TEXT NOT NULL,
  at BIGINT NOT NULL DEFAULT CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint)
);
CREATE TABLE device_connection (
  node TEXT NOT NULL, number BIGINT NOT NULL, device BIGINT NOT NULL, is_exclusive BIGINT NOT NULL,
  PRIMARY KEY (node, number)
);
CREATE INDEX device_connection_by_device ON device_connection (device);
ALTER TABLE lease ADD COLUMN version TEXT;
-- Each commit that ends something, such as a permission, moves it under the lock of the log. It is no row, so that a
-- commit of messages sees it as it is now: when it has moved, the node hears the facts first.
CREATE SEQUENCE fence MINVALUE 0 START 0;
SELECT setval('fence', 0);
