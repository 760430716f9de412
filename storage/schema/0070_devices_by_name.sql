-- Provisioning finds each device by its owner and name, and its mark by its id.
DROP INDEX device_by_owner;
CREATE INDEX device_by_owner ON device (owner, name);
CREATE INDEX provision_mark_by_object ON provision_mark (kind, object);
