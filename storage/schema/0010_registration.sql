-- The certificate authorities that a device type trusts, in the order in which the operator gave them.
CREATE TABLE certificate_authority (
  key INTEGER PRIMARY KEY, device_type INTEGER NOT NULL REFERENCES device_type ON DELETE CASCADE,
  certificate BLOB NOT NULL
);
CREATE INDEX certificate_authority_by_type ON certificate_authority (device_type);
-- The PIN is removed when it can no longer be used. Certificate and nonce are looked up by their SHA-256 hashes.
CREATE TABLE registration (
  key INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, device_type INTEGER NOT NULL REFERENCES device_type,
  vendor_device_id TEXT NOT NULL, certificate BLOB NOT NULL, certificate_hash BLOB NOT NULL, nonce_hash BLOB NOT NULL,
  pin TEXT UNIQUE, status TEXT NOT NULL, user INTEGER REFERENCES user, application INTEGER REFERENCES application,
  device INTEGER REFERENCES device ON DELETE SET NULL, created_on INTEGER NOT NULL, expires_on INTEGER NOT NULL
);
CREATE INDEX registration_by_vendor_id ON registration (device_type, vendor_device_id);
CREATE INDEX registration_by_certificate ON registration (certificate_hash);
CREATE INDEX registration_by_device ON registration (device);
CREATE INDEX registration_by_age ON registration (created_on);
ALTER TABLE device_type ADD COLUMN approved_list INTEGER NOT NULL DEFAULT 0;
CREATE TABLE approved_list_entry (
  key INTEGER PRIMARY KEY, device_type INTEGER NOT NULL REFERENCES device_type ON DELETE CASCADE,
  vdid TEXT NOT NULL, uploaded_on INTEGER NOT NULL
);
CREATE UNIQUE INDEX approved_list_entry_once ON approved_list_entry (device_type, vdid);
-- `content` is the CSV while there is something left to do; the rows before succeeded + failed are done.
CREATE TABLE approved_list_upload (
  key INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE,
  device_type INTEGER NOT NULL REFERENCES device_type ON DELETE CASCADE, status TEXT NOT NULL, content BLOB,
  total INTEGER NOT NULL, succeeded INTEGER NOT NULL, failed INTEGER NOT NULL, created_on INTEGER NOT NULL
);
CREATE INDEX approved_list_upload_by_type ON approved_list_upload (device_type, key);
CREATE INDEX approved_list_upload_to_do ON approved_list_upload (status, key);
CREATE TABLE approved_list_rejection (
  upload INTEGER NOT NULL REFERENCES approved_list_upload ON DELETE CASCADE, row INTEGER NOT NULL,
  message TEXT NOT NULL, PRIMARY KEY (upload, row)
);
CREATE TABLE approved_list_certificate (
  key INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE,
  device_type INTEGER NOT NULL REFERENCES device_type ON DELETE CASCADE, certificate BLOB NOT NULL
);
CREATE UNIQUE INDEX approved_list_certificate_once ON approved_list_certificate (device_type, certificate);
