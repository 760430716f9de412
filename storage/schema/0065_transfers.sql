-- Devices that are offered to another user for good (reference 6.5). `uid`: the user id by which it was offered; NULL: by
-- the address.
CREATE TABLE device_transfer (
  device INTEGER PRIMARY KEY REFERENCES device ON DELETE CASCADE, id TEXT NOT NULL UNIQUE,
  email TEXT NOT NULL COLLATE NOCASE, user INTEGER REFERENCES user ON DELETE CASCADE, uid TEXT,
  offered_on INTEGER NOT NULL, expires_on INTEGER NOT NULL
);
CREATE INDEX device_transfer_by_email ON device_transfer (email);
CREATE INDEX device_transfer_by_user ON device_transfer (user);
