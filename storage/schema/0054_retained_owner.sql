-- The user whose device has retained the message, for the bounds of one user; NULL: not known, counted for nobody.
ALTER TABLE mqtt_retained ADD COLUMN owner INTEGER;
