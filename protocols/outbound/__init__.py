"""Clients for other machines: callbacks, cloud streams, mail, and third-party clouds."""
