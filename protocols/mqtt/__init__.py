"""MQTT 3.1 and 3.1.1 for devices (compatibility.md section 16)."""
