"""Devices that prove who they are: registrations with client certificates, and approved lists of vendor ids."""
