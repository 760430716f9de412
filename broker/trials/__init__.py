"""Trials: participants and administrators around device types, with an application of their own (reference 14)."""
