"""`trunkline retention`: goes on deleting old messages after the clock has jumped (reference 27.7)."""

from pathlib import Path

import click
import trio

from config.loading import load_settings
from protocols.cli.anywhere import run_anywhere
from protocols.cli.daemon_failures import failures_reported
from protocols.cli.options import config_option


@click.group()
def retention() -> None:
    """Control deletion by age."""


@retention.command()
@config_option
def confirm(config: Path | None) -> None:
    """Say that the clock is right, so that what is old by it is deleted again.

    Compare `date` with another clock first. Works with a running and with a stopped daemon.
    """
    with failures_reported():
        settings = load_settings(config)
        found = trio.run(run_anywhere, settings, "retention confirm", {})
    jumped = found["jumped_seconds"]
    click.echo(f"the clock had jumped by {jumped} s: confirmed" if jumped else "nothing was waiting: confirmed")
