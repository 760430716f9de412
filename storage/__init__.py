"""The store: plain SQL in one class for each capability, one writer with group commit, and the message log."""
