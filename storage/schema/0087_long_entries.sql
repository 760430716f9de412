-- Entries of seldom devices are put together (storage/log_index.py). Few are long, so that these indexes stay small.
CREATE INDEX message_entry_long ON message_entry (device, first_ts, key, last_ts) WHERE last_ts - first_ts >= 10000;
CREATE INDEX action_entry_long ON action_entry (device, first_ts, key, last_ts) WHERE last_ts - first_ts >= 10000;
