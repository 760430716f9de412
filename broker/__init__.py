"""What the service means: no sockets, no SQL. The map of the capabilities is in ARCHITECTURE.md beside this file."""
