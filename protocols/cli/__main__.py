"""`python -m protocols.cli`: the demo starts its simulated devices with it, by its own interpreter."""

from protocols.cli import main

main(prog_name="trunkline")
