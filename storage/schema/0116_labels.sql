-- Labels of imported devices: who has the code of one may claim its device, once. `is_open` is 0 when that, or something
-- else, has given the device another owner. Rows stay, also without the device, so that a label can say what it was.
CREATE TABLE device_label (
  hash BLOB PRIMARY KEY, device INTEGER NOT NULL, made_on INTEGER NOT NULL, is_open INTEGER NOT NULL, claimed_on INTEGER
);
CREATE INDEX device_label_of ON device_label (device);
