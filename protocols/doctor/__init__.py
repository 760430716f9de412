"""The checks of `trunkline doctor` (reference 27.12): each changes nothing and is bounded in time."""
