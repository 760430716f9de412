"""The domain logic of the service: no sockets, no SQL. ARCHITECTURE.md beside this file maps the capabilities."""
