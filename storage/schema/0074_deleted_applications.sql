-- An application that was deleted: nothing finds it any more. Its row stays, because devices, trials and the logs of
-- subscriptions that ended refer to it. NULL: it is there.
ALTER TABLE application ADD COLUMN deleted_on INTEGER;
