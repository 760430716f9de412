"""Alarms that rules raise: stored, acknowledged, cleared, and told (reference 12.12 and 12.13)."""
