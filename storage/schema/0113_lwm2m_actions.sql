-- Actions that are operations of LWM2M devices and have not ended, by their position in the log. `owner` is that of the
-- device when the Action came. `step`: the number of its operations that have ended; an Execute counts from its beginning.
CREATE TABLE lwm2m_action (
  position INTEGER PRIMARY KEY, device INTEGER NOT NULL, owner INTEGER NOT NULL, step INTEGER NOT NULL
);
CREATE INDEX lwm2m_action_by_device ON lwm2m_action (device);
