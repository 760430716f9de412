"""Faults: what a daemon loses, and how long it is away, when the machine under it fails. `python -m tests.faults`."""
