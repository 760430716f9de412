-- When a new label was made in the place of this one (reference 6.6).
ALTER TABLE device_label ADD COLUMN replaced_on INTEGER;
