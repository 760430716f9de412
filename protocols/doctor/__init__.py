"""What `trunkline doctor` looks at (reference 27.12): each check changes nothing and is bounded in time."""
