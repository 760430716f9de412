"""Tests of what the daemon tells monitoring."""
