"""The REST API: one module for each capability of the path table (reference 2)."""
