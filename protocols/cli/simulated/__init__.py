"""Devices that are not there: what `trunkline simulate` runs, one module for each protocol."""
