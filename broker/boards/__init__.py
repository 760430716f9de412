"""Boards: what a person has pinned on one page, and read-only links to it (reference 12.14)."""
