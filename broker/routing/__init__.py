"""Routing: connected devices, the firehose and the event feed."""
