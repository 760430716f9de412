"""MQTT 3.1 and 3.1.1 for devices (reference 16)."""
