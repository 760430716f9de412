"""The language of rules: parsers, compiled conditions and Actions, and their evaluation (reference 12.2 to 12.11)."""
