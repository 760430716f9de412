-- Of several nodes (reference 27.25): the registrations of LWM2M, each with the node that serves it, its number there, and
-- what other nodes show of it. `actions_after` is the position of the last Action that waits, or has ended. A registration
-- that has ended stays: Actions behind it and up to `actions_until` may wait, too.
CREATE TABLE lwm2m_registration (
  device INTEGER PRIMARY KEY, node TEXT NOT NULL, number INTEGER NOT NULL, since INTEGER NOT NULL, ended_on INTEGER,
  has_queue_mode INTEGER NOT NULL, is_ready INTEGER NOT NULL, unobserved TEXT NOT NULL, offers TEXT NOT NULL,
  actions_after INTEGER NOT NULL,
  actions_until INTEGER
);
CREATE INDEX lwm2m_registration_by_node ON lwm2m_registration (node);
-- The last Actions that have ended.
CREATE TABLE lwm2m_ended_action (
  device INTEGER NOT NULL, position INTEGER NOT NULL, mid TEXT NOT NULL, name TEXT NOT NULL, at_ms INTEGER NOT NULL,
  state TEXT NOT NULL, text TEXT NOT NULL, PRIMARY KEY (device, position)
);
-- The process that carries out the device task; empty with one daemon.
ALTER TABLE device_task ADD COLUMN holder TEXT NOT NULL DEFAULT '';
-- What the device said of its firmware in the present step.
ALTER TABLE device_task ADD COLUMN reported TEXT NOT NULL DEFAULT '';
