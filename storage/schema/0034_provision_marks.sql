-- What a provision file has made and cannot find again by itself. `kind`: device (`name`: the key of a device in the file,
-- `object`: the device's id), token (application and user, the token's hash in hexadecimal), manifest (the type's id, the
-- version).
CREATE TABLE provision_mark (kind TEXT NOT NULL, name TEXT NOT NULL, object TEXT NOT NULL, PRIMARY KEY (kind, name));
-- A disabled user cannot sign in and has no tokens; null: enabled.
ALTER TABLE user ADD COLUMN disabled_on INTEGER;
