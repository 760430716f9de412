"""Named schema steps, each applied once and in order. A released step is never changed; the next one mends it."""

import secrets

import sqlite_utils
from sqlite_utils import Migrations

migrations = Migrations("trunkline")


@migrations(name="0001_the_main_job")
def the_main_job(db: sqlite_utils.Database) -> None:
    for statement in _MAIN_JOB.split(";\n"):
        if statement.strip():
            db.execute(statement)
    # The key of the message ids lives with the messages, so that a restored backup keeps their ids.
    db["secret"].insert({"name": "mid", "value": secrets.token_bytes(32)})  # type: ignore[union-attr]


@migrations(name="0002_mail")
def mail(db: sqlite_utils.Database) -> None:
    for statement in _MAIL.split(";\n"):
        if statement.strip():
            db.execute(statement)


_MAIL = """
CREATE TABLE mail (
  key INTEGER PRIMARY KEY, message_id TEXT NOT NULL UNIQUE, kind TEXT NOT NULL,
  recipient TEXT NOT NULL COLLATE NOCASE, cause TEXT NOT NULL, content BLOB, created_on INTEGER NOT NULL,
  next_on INTEGER, attempts INTEGER NOT NULL, outcome TEXT, last_error TEXT
);
CREATE INDEX mail_waiting ON mail (next_on, key) WHERE next_on IS NOT NULL;
CREATE INDEX mail_done ON mail (created_on) WHERE next_on IS NULL;
CREATE INDEX mail_by_recipient ON mail (kind, recipient, created_on);
CREATE INDEX mail_by_cause ON mail (kind, cause, created_on);
"""

_MAIN_JOB = """
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
"""


@migrations(name="0003_accounts")
def accounts(db: sqlite_utils.Database) -> None:
    for statement in _ACCOUNTS.split(";\n"):
        if statement.strip():
            db.execute(statement)


_ACCOUNTS = """
CREATE TABLE token_family (
  key INTEGER PRIMARY KEY, application INTEGER NOT NULL REFERENCES application, user INTEGER NOT NULL REFERENCES user,
  method TEXT NOT NULL, created_on INTEGER NOT NULL, usable_until INTEGER NOT NULL
);
CREATE INDEX token_family_by_end ON token_family (usable_until);
ALTER TABLE token ADD COLUMN family INTEGER REFERENCES token_family ON DELETE CASCADE;
CREATE INDEX token_by_family ON token (family);
CREATE INDEX token_by_expiry ON token (expires_on);
CREATE TABLE refresh_token (
  hash BLOB PRIMARY KEY, family INTEGER NOT NULL REFERENCES token_family ON DELETE CASCADE,
  usable_until INTEGER NOT NULL, used_on INTEGER
);
CREATE INDEX refresh_token_by_family ON refresh_token (family);
CREATE INDEX refresh_token_by_end ON refresh_token (usable_until);
CREATE TABLE authorization_code (
  hash BLOB PRIMARY KEY, application INTEGER NOT NULL REFERENCES application,
  user INTEGER NOT NULL REFERENCES user, redirect_uri TEXT NOT NULL, code_challenge TEXT,
  expires_on INTEGER NOT NULL, used_on INTEGER, family INTEGER REFERENCES token_family ON DELETE SET NULL
);
CREATE INDEX authorization_code_by_family ON authorization_code (family);
CREATE INDEX authorization_code_by_expiry ON authorization_code (expires_on);
CREATE TABLE device_code (
  hash BLOB PRIMARY KEY, user_code TEXT NOT NULL UNIQUE, application INTEGER NOT NULL REFERENCES application,
  interval_seconds INTEGER NOT NULL, expires_on INTEGER NOT NULL, state TEXT NOT NULL,
  user INTEGER REFERENCES user, polled_on INTEGER
);
CREATE INDEX device_code_by_expiry ON device_code (expires_on);
CREATE TABLE application_properties (
  user INTEGER NOT NULL REFERENCES user, application INTEGER NOT NULL REFERENCES application,
  properties TEXT NOT NULL, PRIMARY KEY (user, application)
);
"""


@migrations(name="0004_rollups")
def rollups(db: sqlite_utils.Database) -> None:
    db.execute("CREATE TABLE field (key INTEGER PRIMARY KEY, path TEXT NOT NULL UNIQUE)")
    # Clustered by its key: a range of buckets is read in one run. Numbers keep the form they came in.
    db.execute(
        "CREATE TABLE rollup (device INTEGER NOT NULL, field INTEGER NOT NULL, level TEXT NOT NULL,"
        " bucket INTEGER NOT NULL, count INTEGER NOT NULL, numbers INTEGER NOT NULL, min, max, sum,"
        " mean_high REAL, mean_low REAL, m2 REAL, PRIMARY KEY (device, field, level, bucket)) WITHOUT ROWID"
    )


@migrations(name="0005_export_and_retention")
def export_and_retention(db: sqlite_utils.Database) -> None:
    for statement in _EXPORT.split(";\n"):
        if statement.strip():
            db.execute(statement)


_EXPORT = """
CREATE TABLE export (
  key INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, user INTEGER, application INTEGER, trial TEXT,
  request TEXT NOT NULL, plan TEXT NOT NULL, status TEXT NOT NULL, created_on INTEGER NOT NULL, head INTEGER NOT NULL,
  written TEXT, expected_messages INTEGER, total_messages INTEGER NOT NULL, file_size INTEGER, md5 TEXT,
  expires_on INTEGER, last_error TEXT
);
CREATE INDEX export_by_user ON export (user, key);
CREATE INDEX export_by_application ON export (application, key);
CREATE INDEX export_to_do ON export (status, key);
ALTER TABLE device_type ADD COLUMN retention_days INTEGER;
CREATE TABLE retention (name TEXT PRIMARY KEY, position INTEGER NOT NULL);
"""


@migrations(name="0006_sessions")
def sessions(db: sqlite_utils.Database) -> None:
    db.execute(
        "CREATE TABLE session (hash BLOB PRIMARY KEY, user INTEGER NOT NULL REFERENCES user ON DELETE CASCADE,"
        " password BLOB NOT NULL, created_on INTEGER NOT NULL, expires_on INTEGER NOT NULL)"
    )
    db.execute("CREATE INDEX session_by_user ON session (user)")
    db.execute("CREATE INDEX session_by_expiry ON session (expires_on)")
