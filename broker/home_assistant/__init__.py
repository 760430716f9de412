"""Devices in Home Assistant: what is announced to it, and what it asks for (reference 16.7)."""
