-- Addresses are compared in one form (config/mail.py: folded_address; reference 5.1). storage/migrations.py writes it into
-- the rows that there are. Where accounts of an older store have one address in this form, the one that proved it first,
-- else the oldest, has it; the others have NULL, and are found by the address exactly as it is written in them.
ALTER TABLE user ADD COLUMN email_key TEXT;
ALTER TABLE invitation ADD COLUMN email_key TEXT;
ALTER TABLE device_share ADD COLUMN email_key TEXT;
ALTER TABLE trial_invitation ADD COLUMN email_key TEXT;
CREATE UNIQUE INDEX user_by_email_key ON user (email_key);
CREATE INDEX invitation_by_email_key ON invitation (email_key);
CREATE INDEX device_share_by_email_key ON device_share (email_key, status);
CREATE INDEX trial_invitation_by_email_key ON trial_invitation (trial, email_key);
