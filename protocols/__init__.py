"""Every protocol and interface of the daemon. The top layer: no other layer imports from it."""
