"""Stores that older versions of Trunkline made, and the answers that those versions gave (README.md)."""
