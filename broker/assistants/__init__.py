"""Assistants that ask the service over the Model Context Protocol (reference 29)."""
