"""Sessions of devices that outlive their connections (reference 16.5)."""
