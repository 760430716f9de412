"""The formats of what devices answer (reference 18.3)."""
