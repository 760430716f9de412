"""HTTP: the listener (front_door.py), the REST API and the pages."""
