"""The open topic space: topics beside the service's own (reference 16.6)."""
