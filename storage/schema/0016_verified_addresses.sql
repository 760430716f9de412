-- Whoever has an account so far got it from the operator, or before this was asked.
ALTER TABLE user ADD COLUMN email_verified_on INTEGER;
UPDATE user SET email_verified_on = created_on;
