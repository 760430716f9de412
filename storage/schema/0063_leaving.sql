-- Users who are being deleted (reference 5.7). What names them is here until nothing else in the store does.
CREATE TABLE leaving_user (
  user INTEGER PRIMARY KEY REFERENCES user, id TEXT NOT NULL, email TEXT NOT NULL, name TEXT NOT NULL,
  full_name TEXT NOT NULL, began_on INTEGER NOT NULL
);

-- A payment outlives the user who made it: the operator's books need it.
CREATE TABLE payment_of_anyone (
  key INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, device INTEGER NOT NULL, device_id TEXT NOT NULL,
  user INTEGER REFERENCES user, tier INTEGER NOT NULL REFERENCES monetization_tier,
  processor TEXT NOT NULL, status TEXT NOT NULL, cost TEXT NOT NULL, owner_share TEXT NOT NULL,
  redirect_uri TEXT NOT NULL, code_hash BLOB NOT NULL UNIQUE, external_id TEXT, created_on INTEGER NOT NULL,
  decided_on INTEGER
);
INSERT INTO payment_of_anyone SELECT key, id, device, device_id, user, tier, processor, status, cost, owner_share,
  redirect_uri, code_hash, external_id, created_on, decided_on FROM payment;
DROP TABLE payment;
ALTER TABLE payment_of_anyone RENAME TO payment;
CREATE INDEX payment_by_device ON payment (device, tier, status);
CREATE INDEX payment_by_status ON payment (status, key);
CREATE INDEX payment_by_external_id ON payment (external_id);
