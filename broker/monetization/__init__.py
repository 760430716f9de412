"""Monetization: plans with tiers, the tier of each device, upgrades and payments (reference 13)."""
