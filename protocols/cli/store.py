"""`trunkline store salvage`: a new store from what can be read of a damaged one, while no daemon runs."""

from collections.abc import Sequence
from pathlib import Path

import click

from config.logging import configure_logging
from config.settings import load_settings
from protocols.cli.daemon_failures import failures_reported
from protocols.cli.failures import CommandError
from protocols.cli.options import config_option
from protocols.state import StateError, StateInUseError, open_state
from storage.engines.salvage import LAST, SalvagedTable, salvage

_LOST = 1  # the exit status when something is lost


@click.group()
def store() -> None:
    """The file that holds everything."""


@store.command(name="salvage")
@config_option
@click.pass_context
def salvage_(context: click.Context, config: Path | None) -> None:
    """Copy everything that can be read into store.salvaged.sqlite, beside the damaged store.

    Stop the daemon first. The damaged store stays as it is. Exits with 1 when something is lost, and says what.
    """
    with failures_reported():
        settings = load_settings(config)
        configure_logging("warning", settings.log.format)
        try:
            with open_state(settings) as state:
                if not state.database.exists():
                    raise StateError(f"{state.database}: there is no store")
                new = state.database.with_name("store.salvaged.sqlite")
                found = salvage(state.database, new)
        except StateInUseError as error:
            raise CommandError(f"{error}: stop the daemon before its store is salvaged", 4) from error
    for line in _report(found):
        click.echo(line)
    damaged = state.database
    click.echo(f"{new} is complete. To use it:")
    aside = damaged.parent / "damaged"
    click.echo(f"  mkdir {aside} && mv {damaged}* {aside} && mv {new} {damaged}")
    if not all(one.is_whole for one in found):
        context.exit(_LOST)


def _report(found: Sequence[SalvagedTable]) -> list[str]:
    lines = [f"{sum(one.copied for one in found)} rows of {len(found)} tables are copied"]
    for one in found:
        if one.is_whole:
            continue
        gaps = ", ".join(f"{first} to {'the end' if last == LAST else last}" for first, last in one.gaps)
        lines.append(
            f"{one.name}: {one.copied} rows are copied"
            + (f"; nothing can be read in {gaps}" if gaps else "")
            + (f"; {one.refused} rows are left out, because they belong to lost ones" if one.refused else "")
        )
    return lines
