"""WebSocket: the device channel and the feeds (reference 19)."""
