"""Database engines; what only one engine knows stays in here."""
