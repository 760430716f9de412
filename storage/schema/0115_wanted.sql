-- What is wanted of devices: a value for a field, until a message reports it. `value`, `reported`: JSON. `position`:
-- messages behind it are looked at. `ended_on`: when it was reached, refused or expired.
CREATE TABLE wanted (
  device INTEGER NOT NULL, field TEXT NOT NULL, value TEXT NOT NULL, tolerance REAL, revision INTEGER NOT NULL,
  since INTEGER NOT NULL, author TEXT NOT NULL, expires_on INTEGER NOT NULL, state TEXT NOT NULL, sent_on INTEGER,
  ended_on INTEGER, reported TEXT, reason TEXT NOT NULL, position INTEGER NOT NULL, PRIMARY KEY (device, field)
);
CREATE INDEX wanted_open ON wanted (expires_on) WHERE ended_on IS NULL;
CREATE INDEX wanted_ended ON wanted (ended_on) WHERE ended_on IS NOT NULL;
