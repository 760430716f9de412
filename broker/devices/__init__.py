"""Devices: the inventory, their tokens, status and presence (specification, Device)."""
