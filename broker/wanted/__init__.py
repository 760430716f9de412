"""Wanted state: values that wait until a device reports them (reference 9.10)."""
