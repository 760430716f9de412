"""Owners and their data: they delete it, bring it back, see who reads it, and read what a device type records."""
