"""Who may do how much: rate limits per caller, quotas per organization and device (reference 21)."""
