CREATE TABLE secret (name TEXT PRIMARY KEY, value BLOB NOT NULL);
CREATE TABLE counter (name TEXT PRIMARY KEY, value INTEGER NOT NULL);
CREATE TABLE organization (
  key INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, name TEXT NOT NULL UNIQUE, monthly_messages INTEGER NOT NULL
);
CREATE TABLE user (
  key INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, email TEXT NOT NULL COLLATE NOCASE UNIQUE,
  name TEXT NOT NULL UNIQUE, full_name TEXT NOT NULL, account_type TEXT NOT NULL, password_hash TEXT,
  created_on INTEGER NOT NULL, modified_on INTEGER NOT NULL
);
CREATE TABLE membership (
  organization INTEGER NOT NULL REFERENCES organization, user INTEGER NOT NULL REFERENCES user, role TEXT NOT NULL,
  PRIMARY KEY (organization, user)
);
CREATE TABLE application (
  key INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, organization INTEGER NOT NULL REFERENCES organization,
  name TEXT NOT NULL, secret BLOB NOT NULL, methods TEXT NOT NULL, redirect_uris TEXT NOT NULL,
  permissions TEXT NOT NULL
);
CREATE TABLE token (
  hash BLOB PRIMARY KEY, application INTEGER NOT NULL REFERENCES application, user INTEGER REFERENCES user,
  created_on INTEGER NOT NULL, expires_on INTEGER NOT NULL
);
CREATE TABLE device_type (
  key INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, unique_name TEXT NOT NULL UNIQUE, name TEXT NOT NULL,
  organization INTEGER NOT NULL REFERENCES organization, published INTEGER NOT NULL, protected INTEGER NOT NULL,
  rsp INTEGER NOT NULL, description TEXT, tags TEXT NOT NULL, created_on INTEGER NOT NULL
);
CREATE TABLE manifest (
  device_type INTEGER NOT NULL REFERENCES device_type, version INTEGER NOT NULL, document TEXT NOT NULL,
  approved INTEGER NOT NULL, created_on INTEGER NOT NULL, PRIMARY KEY (device_type, version)
);
CREATE TABLE access_grant (
  user INTEGER NOT NULL REFERENCES user, application INTEGER NOT NULL REFERENCES application,
  device_type INTEGER REFERENCES device_type, can_read INTEGER NOT NULL, can_write INTEGER NOT NULL
);
CREATE UNIQUE INDEX access_grant_once ON access_grant (user, application, coalesce(device_type, 0));
CREATE TABLE device (
  key INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, owner INTEGER NOT NULL REFERENCES user,
  device_type INTEGER NOT NULL REFERENCES device_type, name TEXT NOT NULL, manifest_version INTEGER NOT NULL,
  manifest_version_policy TEXT NOT NULL, enabled INTEGER NOT NULL, created_on INTEGER NOT NULL
);
CREATE INDEX device_by_owner ON device (owner);
CREATE INDEX device_by_type ON device (device_type);
CREATE TABLE device_token (
  device INTEGER PRIMARY KEY REFERENCES device, hash BLOB NOT NULL UNIQUE, sealed BLOB NOT NULL,
  application INTEGER REFERENCES application, created_on INTEGER NOT NULL
);
CREATE TABLE presence (
  device INTEGER PRIMARY KEY REFERENCES device, availability TEXT NOT NULL, last_time_online INTEGER,
  protocol TEXT, last_seen_on INTEGER
);
CREATE TABLE message (
  position INTEGER PRIMARY KEY, device INTEGER NOT NULL, ts INTEGER NOT NULL, cts INTEGER NOT NULL,
  mv INTEGER NOT NULL, data TEXT NOT NULL
);
CREATE INDEX message_by_time ON message (device, ts);
CREATE INDEX message_by_arrival ON message (device);
CREATE TABLE action (
  position INTEGER PRIMARY KEY, device INTEGER NOT NULL, source INTEGER NOT NULL, ts INTEGER NOT NULL,
  cts INTEGER NOT NULL, mv INTEGER NOT NULL, data TEXT NOT NULL
);
CREATE INDEX action_by_time ON action (device, ts);
CREATE TABLE failed_message (
  position INTEGER PRIMARY KEY, device INTEGER NOT NULL, cts INTEGER NOT NULL, reason TEXT NOT NULL,
  payload TEXT NOT NULL
);
CREATE TABLE snapshot (device INTEGER PRIMARY KEY, fields TEXT NOT NULL);
CREATE TABLE consumer (name TEXT PRIMARY KEY, position INTEGER NOT NULL);
