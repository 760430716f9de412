"""Simulated devices for `trunkline simulate`, one module for each protocol."""
