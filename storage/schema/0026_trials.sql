CREATE TABLE trial (
  key INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, owner INTEGER NOT NULL REFERENCES user, name TEXT NOT NULL,
  description TEXT, application INTEGER NOT NULL UNIQUE REFERENCES application, started_on INTEGER NOT NULL,
  ended_on INTEGER
);
CREATE INDEX trial_by_owner ON trial (owner);
CREATE TABLE trial_member (
  key INTEGER PRIMARY KEY, trial INTEGER NOT NULL REFERENCES trial ON DELETE CASCADE,
  user INTEGER NOT NULL REFERENCES user, role TEXT NOT NULL, since INTEGER NOT NULL
);
CREATE UNIQUE INDEX trial_member_once ON trial_member (trial, role, user);
CREATE INDEX trial_member_by_user ON trial_member (user);
CREATE TABLE trial_device_type (
  key INTEGER PRIMARY KEY, trial INTEGER NOT NULL REFERENCES trial ON DELETE CASCADE,
  device_type INTEGER NOT NULL REFERENCES device_type
);
CREATE UNIQUE INDEX trial_device_type_once ON trial_device_type (trial, device_type);
-- Devices that their owners connected to a trial.
CREATE TABLE trial_device (
  key INTEGER PRIMARY KEY, trial INTEGER NOT NULL REFERENCES trial ON DELETE CASCADE,
  user INTEGER NOT NULL REFERENCES user, device INTEGER NOT NULL REFERENCES device ON DELETE CASCADE,
  connected_on INTEGER NOT NULL
);
CREATE UNIQUE INDEX trial_device_once ON trial_device (trial, device);
CREATE INDEX trial_device_by_user ON trial_device (trial, user);
CREATE INDEX trial_device_by_device ON trial_device (device);
-- `status` is sent, accepted or revoked; one that is sent has expired when `expires_on` is over.
CREATE TABLE trial_invitation (
  key INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, trial INTEGER NOT NULL REFERENCES trial ON DELETE CASCADE,
  email TEXT NOT NULL COLLATE NOCASE, role TEXT NOT NULL, status TEXT NOT NULL, sent_on INTEGER NOT NULL,
  expires_on INTEGER NOT NULL, accepted_on INTEGER, revoked_on INTEGER, code_hash BLOB UNIQUE
);
CREATE INDEX trial_invitation_by_trial ON trial_invitation (trial, status);
CREATE INDEX trial_invitation_by_email ON trial_invitation (trial, email);
-- The organization that owns the trial applications of a user who is a member of none. It has no members.
CREATE TABLE personal_organization (
  user INTEGER PRIMARY KEY REFERENCES user, organization INTEGER NOT NULL REFERENCES organization
);
-- How many trials a user created on a day (UTC), also those that are deleted by now.
CREATE TABLE trial_tally (user INTEGER PRIMARY KEY REFERENCES user, day INTEGER NOT NULL, created INTEGER NOT NULL);
-- All tokens of a trial's application end with the trial.
CREATE INDEX token_by_application ON token (application);
-- The optional module of sessions (reference 14.5). `devices` are ids, separated by commas.
CREATE TABLE trial_session (
  key INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, trial INTEGER NOT NULL REFERENCES trial ON DELETE CASCADE,
  user INTEGER NOT NULL REFERENCES user, devices TEXT NOT NULL, started_on INTEGER, ended_on INTEGER,
  created_on INTEGER NOT NULL
);
CREATE TABLE trial_session_device (
  session INTEGER NOT NULL REFERENCES trial_session ON DELETE CASCADE, device TEXT NOT NULL,
  PRIMARY KEY (session, device)
);
CREATE INDEX trial_session_device_by_id ON trial_session_device (device);
CREATE INDEX trial_session_by_trial ON trial_session (trial, user);
-- Metadata, rules and metadata of rules: JSON objects that are only kept. `name` and `session` are their members `key`
-- and `sessionId`.
CREATE TABLE trial_document (
  key INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, trial INTEGER NOT NULL REFERENCES trial ON DELETE CASCADE,
  kind TEXT NOT NULL, name TEXT, session TEXT, content TEXT NOT NULL, sharing TEXT NOT NULL, created_on INTEGER NOT NULL
);
CREATE INDEX trial_document_by_trial ON trial_document (trial, kind, name);
CREATE INDEX trial_document_by_session ON trial_document (session);
