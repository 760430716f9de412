"""HTTP: the front door, the REST API and the pages."""
