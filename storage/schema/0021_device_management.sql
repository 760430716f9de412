CREATE TABLE management (
  device_type INTEGER PRIMARY KEY, device_properties_enabled INTEGER NOT NULL, pmin INTEGER NOT NULL,
  pmax INTEGER NOT NULL, task_expires_after INTEGER NOT NULL, created_on INTEGER NOT NULL, modified_on INTEGER NOT NULL
);
-- Values are nested JSON; the times of their leaves are by dotted path.
CREATE TABLE property_set (
  device INTEGER PRIMARY KEY, server TEXT NOT NULL, server_times TEXT NOT NULL, reported TEXT NOT NULL,
  reported_times TEXT NOT NULL, registered_on INTEGER
);
CREATE TABLE task (
  key INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, device_type INTEGER NOT NULL, request TEXT NOT NULL,
  status TEXT NOT NULL, created_on INTEGER NOT NULL, modified_on INTEGER NOT NULL, scheduled_on INTEGER,
  expires_on INTEGER NOT NULL, image TEXT, phase TEXT NOT NULL
);
CREATE INDEX task_by_type ON task (device_type, status);
CREATE INDEX task_to_do ON task (status, key);
CREATE TABLE device_task (
  key INTEGER PRIMARY KEY, task INTEGER NOT NULL, device INTEGER NOT NULL, status TEXT NOT NULL, ts INTEGER NOT NULL,
  attempts INTEGER NOT NULL, acceptance TEXT NOT NULL, started_on INTEGER, ended_on INTEGER, error_code TEXT,
  error_message TEXT, step TEXT NOT NULL, step_on INTEGER, tries INTEGER NOT NULL, restarts INTEGER NOT NULL,
  download TEXT UNIQUE, fetched INTEGER NOT NULL
);
CREATE UNIQUE INDEX device_task_once ON device_task (task, device);
CREATE INDEX device_task_by_status ON device_task (task, status);
CREATE INDEX device_task_by_device ON device_task (device, status);
CREATE TABLE task_history (
  key INTEGER PRIMARY KEY, task INTEGER NOT NULL, device INTEGER NOT NULL, ts INTEGER NOT NULL, status TEXT NOT NULL,
  error_code TEXT, error_message TEXT, attempts INTEGER NOT NULL
);
CREATE INDEX task_history_by_task ON task_history (task, device);
CREATE INDEX task_history_by_device ON task_history (device);
CREATE TABLE firmware_image (
  id TEXT PRIMARY KEY, device_type INTEGER NOT NULL, version TEXT NOT NULL, type TEXT NOT NULL, size INTEGER NOT NULL,
  sha256 TEXT NOT NULL, created_on INTEGER NOT NULL
);
CREATE INDEX firmware_image_by_type ON firmware_image (device_type, created_on);
