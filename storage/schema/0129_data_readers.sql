-- Who has read the messages of a user's devices: the application (0: none, a device's token) for the reader (0: itself).
CREATE TABLE data_reader (
  owner INTEGER NOT NULL, application INTEGER NOT NULL, reader INTEGER NOT NULL, count INTEGER NOT NULL,
  first_on INTEGER NOT NULL, last_on INTEGER NOT NULL, PRIMARY KEY (owner, application, reader)
);
