"""Several daemons on one store: which of them does what."""
