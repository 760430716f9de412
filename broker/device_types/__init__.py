"""Device types and their Manifests (reference 8)."""
