-- Boards: what a person has pinned on one page (reference 12.14). `tiles`: JSON, in their order. `link`: the hash of the
-- secret of a read-only link, until `link_expires_on`; NULL: without a link, and without an end.
CREATE TABLE board (
  key INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, user INTEGER NOT NULL, name TEXT NOT NULL, tiles TEXT NOT NULL,
  created_on INTEGER NOT NULL, modified_on INTEGER NOT NULL, link BLOB UNIQUE, link_made_on INTEGER,
  link_expires_on INTEGER
);
CREATE INDEX board_by_user ON board (user, key);
