"""Export: a range of messages as an archive to download (reference 10)."""
