"""What the daemon remembers of what happened to it: refusals in the log, and the audit log (reference 28)."""
