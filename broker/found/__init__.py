"""Devices that an MQTT client announces for Home Assistant, taken over as devices of this service (reference 16.9)."""
