"""Device types and their Manifests (specification, Device type; compatibility.md section 8)."""
