"""Tests of `trunkline doctor`."""
