"""Settings, limits and logging: read once at start, never changed behind a reader's back."""
