-- Of several nodes: the latest backup that an operator has begun on each one's page, and the backups in its folder (JSON).
CREATE TABLE operator_backup (
  node TEXT PRIMARY KEY, instance TEXT NOT NULL, status TEXT NOT NULL, started_on INTEGER NOT NULL, ended_on INTEGER,
  done INTEGER NOT NULL, total INTEGER NOT NULL, file TEXT NOT NULL, problem TEXT NOT NULL, kept TEXT NOT NULL
);
