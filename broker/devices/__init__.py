"""Devices: the inventory, their tokens, status and presence (reference 6.1)."""
