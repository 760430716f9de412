"""The console at /: pages of the public API for a person who is signed in (reference 4.10)."""
