"""Messages of devices that publish on open topics, or send to hooks (reference 16.8)."""
