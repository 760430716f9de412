-- How a user is told of alarms (reference 12.13), sealed JSON of broker/alarms, and what could not be told last. A notice
-- is what is to be sent on one way, sealed: its text and the link that acknowledges.
CREATE TABLE alarm_telling (
  user INTEGER PRIMARY KEY, sealed BLOB NOT NULL, changed_on INTEGER NOT NULL, problem TEXT NOT NULL, problem_on INTEGER
);
CREATE TABLE alarm_notice (
  key INTEGER PRIMARY KEY, user INTEGER NOT NULL, way TEXT NOT NULL, sealed BLOB NOT NULL, created_on INTEGER NOT NULL,
  next_on INTEGER NOT NULL, tries INTEGER NOT NULL
);
CREATE INDEX alarm_notice_next ON alarm_notice (next_on);
CREATE INDEX alarm_notice_of ON alarm_notice (user, key);
