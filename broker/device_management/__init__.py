"""Device management: properties of devices, tasks on many devices, and firmware updates (reference 15 and 18)."""
