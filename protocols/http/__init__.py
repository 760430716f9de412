"""HTTP: the listener (server.py), the REST API and the pages."""
