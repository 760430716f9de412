-- The audit log. `of_stranger` marks what a peer without valid credentials has caused, which has a bound of its own.
CREATE TABLE audit_entry (
  key INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL, event TEXT NOT NULL, actor TEXT NOT NULL, address TEXT NOT NULL,
  object TEXT NOT NULL, outcome TEXT NOT NULL, of_stranger INTEGER NOT NULL, details TEXT NOT NULL
);
CREATE INDEX audit_entry_by_time ON audit_entry (at_ms);
CREATE INDEX audit_entry_of_stranger ON audit_entry (key) WHERE of_stranger = 1;
