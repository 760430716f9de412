-- Existing addresses count as verified: the operator gave these accounts, or they were opened before addresses
-- were verified.
ALTER TABLE user ADD COLUMN email_verified_on INTEGER;
UPDATE user SET email_verified_on = created_on;
