"""The server to which devices register by LWM2M (reference 18)."""
