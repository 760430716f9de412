"""Secure registration of devices with client certificates, and approved lists of vendor ids (reference 7)."""
