"""`trunkline statistics`: what a running daemon does and holds, down to the disk its messages take."""

from pathlib import Path

import click
import trio

from config.settings import load_settings
from protocols.cli.daemon_failures import failures_reported
from protocols.cli.failures import CommandError
from protocols.control import ControlUnavailableError, call


@click.command()
@click.option("--config", type=click.Path(dir_okay=False, path_type=Path), help="The daemon's configuration file.")
def statistics(config: Path | None) -> None:
    """Ask the running daemon for its counters: the store, ingest, connections, retention and disk use, mails."""
    with failures_reported():
        settings = load_settings(config)
        try:
            parts = trio.run(call, settings.state_dir, "statistics", {})
        except ControlUnavailableError as error:
            raise CommandError(f"no daemon runs on {settings.state_dir}") from error
    for part, counters in parts.items():
        click.echo(part)
        for name, value in counters.items():
            click.echo(f"  {name.replace('_', ' '):<26}{_text(name, value):>16}")


def _text(name: str, value: float) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value / 1024**2:,.1f} MiB" if name.endswith("_bytes") else f"{value:,}"
