"""Explains rules: their status, and simulations over the log (reference 12.9)."""
