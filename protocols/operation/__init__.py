"""The daemon and its state directory: the key, backups, checks, the start, reloading, systemd."""
