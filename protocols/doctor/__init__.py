"""What `trunkline doctor` looks at (reference 27.10): each check changes nothing and is bounded in time."""
