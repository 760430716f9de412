"""`python -m protocols.cli`: the demo starts its simulated devices with this, in its own interpreter."""

from protocols.cli import main

main(prog_name="trunkline")
