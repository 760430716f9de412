-- Subscriptions to alarms (reference 11.3). `alarm`: JSON, the alarm as it was after the change that the notification tells,
-- without its texts; NULL for one of messages or Actions.
ALTER TABLE notification ADD COLUMN alarm TEXT;
CREATE INDEX subscription_of_alarms ON subscription (user, application) WHERE message_type = 'alarm' AND removed_on IS NULL;
