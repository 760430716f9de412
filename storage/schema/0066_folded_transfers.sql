-- Offers of devices to an address are found in the form in which addresses are compared (config/mail.py: folded_address).
ALTER TABLE device_transfer ADD COLUMN email_key TEXT;
UPDATE device_transfer SET email_key = lower(email);
CREATE INDEX device_transfer_by_email_key ON device_transfer (email_key);
