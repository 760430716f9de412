-- As 0091_addresses_as_written.sql. The collation took for equal what SQLite's NOCASE does not: also texts that differ in
-- the width of letters, or by signs that are not seen, and so one account for another.
ALTER TABLE "user" ALTER COLUMN email TYPE TEXT;
ALTER TABLE mail ALTER COLUMN recipient TYPE TEXT;
ALTER TABLE device_share ALTER COLUMN email TYPE TEXT;
ALTER TABLE invitation ALTER COLUMN email TYPE TEXT;
ALTER TABLE trial_invitation ALTER COLUMN email TYPE TEXT;
ALTER TABLE device_transfer ALTER COLUMN email TYPE TEXT;
DROP COLLATION nocase;
CREATE UNIQUE INDEX user_by_written_email ON "user" (lower(email COLLATE "C"));
UPDATE mail SET recipient = lower(recipient COLLATE "C");
