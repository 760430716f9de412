CREATE TABLE subscription (
  key INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, application INTEGER NOT NULL REFERENCES application,
  user INTEGER NOT NULL REFERENCES user, message_type TEXT NOT NULL,
  spelling TEXT NOT NULL, device_type INTEGER, source INTEGER, destination INTEGER, include_shared INTEGER NOT NULL,
  description TEXT, payload TEXT NOT NULL, callback_url TEXT, stream_key TEXT, stream_secret BLOB, stream_region TEXT,
  stream_name TEXT, nonce BLOB, handshake_tries INTEGER NOT NULL, handshake_on INTEGER, webhook_secret BLOB,
  old_webhook_secret BLOB, old_secret_until INTEGER, status TEXT NOT NULL, created_on INTEGER NOT NULL,
  modified_on INTEGER NOT NULL, failing_since INTEGER, last_error TEXT, removed_on INTEGER
);
CREATE INDEX subscription_in_use ON subscription (key) WHERE removed_on IS NULL;
-- Up to where the log is in notifications of a subscription. is_behind: the reader of all others is further on.
CREATE TABLE subscription_cursor (
  subscription INTEGER PRIMARY KEY, position INTEGER NOT NULL, is_behind INTEGER NOT NULL
);
-- positions and attempts are JSON. next_on is set while the notification is not delivered and not given up.
CREATE TABLE notification (
  key INTEGER PRIMARY KEY, subscription INTEGER NOT NULL, status TEXT NOT NULL, created_on INTEGER NOT NULL,
  start_ts INTEGER NOT NULL, end_ts INTEGER NOT NULL, positions TEXT NOT NULL, attempts TEXT NOT NULL,
  tries INTEGER NOT NULL, next_on INTEGER
);
CREATE INDEX notification_of_subscription ON notification (subscription, key);
CREATE INDEX notification_due ON notification (next_on) WHERE next_on IS NOT NULL;
CREATE INDEX notification_pending ON notification (subscription) WHERE next_on IS NOT NULL;
