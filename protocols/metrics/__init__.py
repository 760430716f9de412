"""What the daemon tells monitoring: metrics for Prometheus, and whether it is ready (reference 27.11)."""
