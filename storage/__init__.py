"""How it is kept: plain SQL stores, one writer with group commit, and the message log."""
