"""Messages and Actions: the one path in, and the ways to read them back."""
