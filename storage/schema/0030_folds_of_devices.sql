-- What the log came to for a device, up to `position`: fields, and the newest bucket of each level (broker/messages/folds.py).
-- 0: a store from before; all rows up to the consumer `folds` are in `fields` and in the rollups.
ALTER TABLE snapshot ADD COLUMN position INTEGER NOT NULL DEFAULT 0;
ALTER TABLE snapshot ADD COLUMN open TEXT;
