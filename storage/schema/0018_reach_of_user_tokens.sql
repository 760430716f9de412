-- What the user agreed to on the permission screen beside device types: changing the profile.
ALTER TABLE access_grant ADD COLUMN can_write_profile INTEGER NOT NULL DEFAULT 0;
CREATE INDEX access_grant_by_application ON access_grant (application, device_type);
-- Grants limit user tokens from now on. A token of before counts as a sign-in through its application.
INSERT INTO access_grant (user, application, device_type, can_read, can_write)
SELECT s.user, s.application, NULL, 0, 0 FROM (
  SELECT user, application FROM token WHERE user IS NOT NULL UNION SELECT user, application FROM token_family
) AS s
WHERE NOT EXISTS (SELECT 1 FROM access_grant AS g WHERE g.user = s.user AND g.application = s.application);
