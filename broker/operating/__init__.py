"""What the operator's page shows and does (reference 27.21)."""
