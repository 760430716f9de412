"""The daemon's record of events: refusals in the log, and the audit log (reference 28)."""
