"""The operator's page: its contents and actions (reference 27.21)."""
