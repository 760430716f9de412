"""`trunkline serve`: the daemon in the foreground."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import click
import trio

from broker.services import Services
from config.logging import configure_logging
from config.settings import Address, load_settings
from protocols.cli.daemon_failures import failures_reported
from protocols.daemon import run_daemon


@click.command()
@click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The configuration file; without it, only the TRUNKLINE_… environment variables count.",
)
def serve(config: Path | None) -> None:
    """Serve devices and applications until SIGTERM or SIGINT. SIGHUP reloads certificates, log level, rates and limits.

    Exit status: 0 after a graceful stop, 2 for a bad configuration, 3 when a listener cannot be opened, 4 when the
    store cannot be opened.
    """
    with failures_reported():
        settings = load_settings(config)
        configure_logging(settings.log.level, settings.log.format)
        trio.run(partial(run_daemon, settings, ready=announce, load=partial(load_settings, config)))


async def announce(_services: Services, addresses: Mapping[str, Address]) -> None:
    """Print the ready line, which scripts wait for (reference 27.1)."""
    listeners = "".join(f" {name}={address}" for name, address in addresses.items())
    click.echo(f"trunkline ready{listeners}")  # click flushes
