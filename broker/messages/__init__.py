"""Messages and Actions: accepting, storing, projecting and reading them."""
