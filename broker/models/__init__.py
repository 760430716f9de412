"""Models: they learn from the history of devices, predict values and find anomalies (reference 12.6)."""
