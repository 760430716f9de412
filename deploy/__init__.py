"""How Trunkline gets onto a machine. Nothing of it is installed there."""
