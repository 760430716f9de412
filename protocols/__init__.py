"""Every way in or out. The top layer: nothing imports from here."""
