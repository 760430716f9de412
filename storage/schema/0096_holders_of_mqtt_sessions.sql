-- Of several nodes: the connection that has the session, as its node and its number. Another one stores nothing of it.
ALTER TABLE mqtt_session ADD COLUMN holder TEXT NOT NULL DEFAULT '';
