-- What fails at the cloud connector of a device type: a bounded JSON text of broker/connectors/problems.py.
CREATE TABLE connector_problems (device_type INTEGER PRIMARY KEY REFERENCES device_type, problems TEXT NOT NULL);
