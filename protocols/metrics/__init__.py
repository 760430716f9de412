"""Monitoring of the daemon: metrics for Prometheus, and whether it is ready (reference 27.11)."""
