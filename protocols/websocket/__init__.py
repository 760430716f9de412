"""WebSocket: the device channel and the feeds (compatibility.md section 19)."""
