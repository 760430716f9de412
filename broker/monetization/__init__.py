"""What a device's messages may cost: plans with tiers, who is on which, upgrades and payments (reference 13)."""
