-- The user id by which a device was offered; NULL: by an address. The owner does not see the address behind a user id.
ALTER TABLE device_share ADD COLUMN uid TEXT;
