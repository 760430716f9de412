-- The IP address from which a device fetches its image, once it has proved that it is there: after a restart of the
-- daemon, a download by CoAP goes on without another proof. NULL: none has been proved.
ALTER TABLE device_task ADD COLUMN fetched_from TEXT;
