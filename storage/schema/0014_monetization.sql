CREATE TABLE monetization_plan (
  key INTEGER PRIMARY KEY, device_type INTEGER NOT NULL REFERENCES device_type, version INTEGER NOT NULL,
  status TEXT NOT NULL, contact_email TEXT NOT NULL, contact_phone TEXT NOT NULL, comments TEXT NOT NULL,
  revenue_share_percent INTEGER NOT NULL, created_on INTEGER NOT NULL, modified_on INTEGER NOT NULL,
  UNIQUE (device_type, version)
);
CREATE TABLE monetization_tier (
  key INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, plan INTEGER NOT NULL REFERENCES monetization_plan,
  name TEXT NOT NULL, type TEXT NOT NULL, description TEXT NOT NULL, cost TEXT NOT NULL,
  message_limit INTEGER NOT NULL, interval TEXT NOT NULL, billing_interval TEXT NOT NULL,
  created_on INTEGER NOT NULL, modified_on INTEGER NOT NULL
);
CREATE INDEX monetization_tier_by_plan ON monetization_tier (plan);
-- Which tier a device is on. One without a row is on the free tier of the latest approved plan of its type.
CREATE TABLE device_tier (
  device INTEGER PRIMARY KEY REFERENCES device ON DELETE CASCADE,
  tier INTEGER NOT NULL REFERENCES monetization_tier, since INTEGER NOT NULL
);
-- The one-time tokens of upgrade addresses. `token` is the hash of the access token it ends with.
CREATE TABLE upgrade_token (
  hash BLOB PRIMARY KEY, user INTEGER NOT NULL REFERENCES user, token BLOB NOT NULL,
  application INTEGER NOT NULL REFERENCES application, device INTEGER NOT NULL REFERENCES device ON DELETE CASCADE,
  action TEXT NOT NULL, expires_on INTEGER NOT NULL, used_on INTEGER
);
CREATE INDEX upgrade_token_by_expiry ON upgrade_token (expires_on);
-- The split of the price is kept as it was agreed when it was paid.
CREATE TABLE payment (
  key INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, device INTEGER NOT NULL, device_id TEXT NOT NULL,
  user INTEGER NOT NULL REFERENCES user, tier INTEGER NOT NULL REFERENCES monetization_tier,
  processor TEXT NOT NULL, status TEXT NOT NULL, cost TEXT NOT NULL, owner_share TEXT NOT NULL,
  redirect_uri TEXT NOT NULL, code_hash BLOB NOT NULL UNIQUE, external_id TEXT, created_on INTEGER NOT NULL,
  decided_on INTEGER
);
CREATE INDEX payment_by_device ON payment (device, tier, status);
CREATE INDEX payment_by_status ON payment (status, key);
CREATE INDEX payment_by_external_id ON payment (external_id);
