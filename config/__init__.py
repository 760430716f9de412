"""Settings, limits and logging. They are read at the start and do not change while the daemon runs."""
