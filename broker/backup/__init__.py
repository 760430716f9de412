"""A backup is one file with everything that a state directory holds and cannot make again (reference 27.9)."""
