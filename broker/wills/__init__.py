"""Wills of MQTT connections, also over restarts of the daemon (reference 16.2)."""
