-- Files: firmware images, and archives of exports and of users. `name` says whose it is, and is NULL for a file that
-- nobody has, not yet or not any more; after `due_on` it is deleted, NULL: it is kept.
CREATE TABLE file (
  key INTEGER PRIMARY KEY, name TEXT UNIQUE, size INTEGER NOT NULL, due_on INTEGER
);
CREATE INDEX file_by_end ON file (due_on);
-- `position` is that of the first byte in the file.
CREATE TABLE file_chunk (
  file INTEGER NOT NULL REFERENCES file, position INTEGER NOT NULL, content BLOB NOT NULL, PRIMARY KEY (file, position)
);
