"""`python -m protocols.cli`: how the demo starts its simulated devices with its own interpreter."""

from protocols.cli import main

main(prog_name="trunkline")
