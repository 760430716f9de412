"""Limits: rate limits of each caller, quotas of organizations and devices (reference 21)."""
