-- `definition`, `inputs`, `outputs` and `state` are JSON. `state` has the numbers that training found.
CREATE TABLE model (
  key INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, user INTEGER NOT NULL, application INTEGER NOT NULL,
  type TEXT NOT NULL, definition TEXT NOT NULL, inputs TEXT NOT NULL, outputs TEXT NOT NULL, rule INTEGER,
  condition INTEGER, rule_device INTEGER, status TEXT NOT NULL, reason TEXT NOT NULL, created_on INTEGER NOT NULL,
  next_training_on INTEGER NOT NULL, trained_on INTEGER, state TEXT
);
CREATE INDEX model_by_user ON model (user, key);
CREATE INDEX model_by_rule ON model (rule);
CREATE INDEX model_to_train ON model (next_training_on);
-- The devices whose values a model is trained on.
CREATE TABLE model_device (device INTEGER NOT NULL, model INTEGER NOT NULL, PRIMARY KEY (device, model));
CREATE INDEX model_device_by_model ON model_device (model);
