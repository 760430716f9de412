CREATE TABLE scene (
  key INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, user INTEGER NOT NULL, application INTEGER NOT NULL,
  name TEXT NOT NULL, description TEXT NOT NULL, actions TEXT NOT NULL, created_on INTEGER NOT NULL,
  modified_on INTEGER NOT NULL, invalidated_on INTEGER, findings TEXT
);
CREATE INDEX scene_by_user ON scene (user, key);
-- The devices that the Actions of a scene name.
CREATE TABLE scene_device (device INTEGER NOT NULL, scene INTEGER NOT NULL, PRIMARY KEY (device, scene));
CREATE INDEX scene_device_by_scene ON scene_device (scene);
