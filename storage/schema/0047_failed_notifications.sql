-- The delivery log of one subscription may have millions of notifications, and few of them failed.
CREATE INDEX notification_failed ON notification (subscription, key) WHERE status = 'FAILED';
