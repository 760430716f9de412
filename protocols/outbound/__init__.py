"""What leaves the machine."""
