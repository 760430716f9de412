-- The application's own tokens have an administrator's rights in its organization (reference 5.3). Those that exist have
-- them, except for the applications of trials.
ALTER TABLE application ADD COLUMN manages_organization INTEGER NOT NULL DEFAULT 0;
UPDATE application SET manages_organization = 1 WHERE key NOT IN (SELECT application FROM trial);
