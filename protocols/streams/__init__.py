"""Connections over TCP: listeners, TLS, who is at the other end, reading, writing, and the end."""
