"""`trunkline migrate` and `trunkline store`: the store of a stopped daemon, upgraded, put back, or salvaged."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

from config.loading import load_settings
from config.logging import configure_logging
from protocols.cli.daemon_failures import failures_reported
from protocols.cli.failures import CommandError
from protocols.cli.options import config_option
from protocols.errors import StateError, StateInUseError, require_store
from protocols.operation.state import open_state
from storage.engines import engine_of
from storage.engines.salvage import LAST, SalvagedTable, salvage
from storage.engines.sqlite_compact import compact, room_needed
from storage.engines.sqlite_upgrade import copies_of, undo_upgrade
from storage.migrations import VERSION

_INSTEAD_OF_SALVAGE = "pg_amcheck looks for damage; restore a backup, or the server to a point in time before"
_INSTEAD_OF_UNDO = "restore the backup that you have made before the upgrade"
_INSTEAD_OF_COMPACT = "dropped partitions give room back at once; autovacuum gives that of rows to new ones"
_LOST = 1  # the exit status when something is lost


@click.command()
@click.option("--no-copy", is_flag=True, help="Keep no copy of the store: you have a backup, or the disk has no room.")
@config_option
def migrate(no_copy: bool, config: Path | None) -> None:
    """Bring the store of a stopped daemon to this version, as the daemon does when it starts.

    A copy of the store is kept beside it for a day; `trunkline store undo-upgrade` puts it back. There is none of a
    database of PostgreSQL: make a backup before.
    """
    with failures_reported():
        settings = load_settings(config)
        configure_logging("warning", settings.log.format)
        require_store(settings)
        tell = None if no_copy else lambda text: click.echo(text, err=True)
        try:
            with open_state(settings) as state:
                engine = engine_of(settings, progress=tell)
                engine.migrate()
        except StateInUseError as error:
            raise CommandError(f"{error}: stop the daemon first", 4) from error
        click.echo(f"{engine} is a store of Trunkline {VERSION}")
        if copies := copies_of(state.database):
            click.echo(f"the store of before is {copies[-1]}")


@contextmanager
def _stopped(config: Path | None, instead: str) -> Iterator[Path]:
    """The store of a stopped daemon, which cannot start within the block."""
    with failures_reported():
        settings = load_settings(config)
        if settings.storage.is_postgresql:
            raise StateError(f"storage.url names a database of PostgreSQL, and this command is for SQLite: {instead}")
        configure_logging("warning", settings.log.format)
        try:
            with open_state(settings) as state:
                if not state.database.exists():
                    raise StateError(f"{state.database}: there is no store")
                yield state.database
        except StateInUseError as error:
            raise CommandError(f"{error}: stop the daemon first", 4) from error


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
    with _stopped(config, _INSTEAD_OF_SALVAGE) as damaged:
        new = damaged.with_name("store.salvaged.sqlite")
        found = salvage(damaged, new)
    for line in _report(found):
        click.echo(line)
    click.echo(f"{new} is complete. To use it:")
    aside = damaged.parent / "damaged"
    click.echo(f"  mkdir {aside} && mv {damaged}* {aside} && mv {new} {damaged}")
    if not all(one.is_whole for one in found):
        context.exit(_LOST)


@store.command(name="compact")
@config_option
def compact_(config: Path | None) -> None:
    """Rewrite the store, without its free pages, and give their room back to the disk.

    Stop the daemon first. All that the store has must fit beside it; when this is interrupted, the store is as it was.
    A store of an earlier version that never became smaller gives room back by itself afterwards.
    """
    with _stopped(config, _INSTEAD_OF_COMPACT) as there:
        needed = room_needed(there)
        click.echo(f"{needed / 2**20:,.0f} MiB are needed on the disk of {there.parent}", err=True)
        done = compact(there, lambda text: click.echo(text, err=True))
    click.echo(f"{there} has {done.after / 2**20:,.1f} MiB now; before, {done.before / 2**20:,.1f} MiB")


@store.command(name="undo-upgrade")
@click.option("--force", is_flag=True, help="Also when messages came after the upgrade: they are lost.")
@config_option
def undo_upgrade_(force: bool, config: Path | None) -> None:
    """Put back the copy of the store that the last upgrade has kept, for the version of before.

    Stop the daemon first. The upgraded store stays beside it.
    """
    with _stopped(config, _INSTEAD_OF_UNDO) as upgraded:
        copy, aside = undo_upgrade(upgraded, force=force)
    click.echo(f"{copy.name} is the store again; the upgraded one is {aside}")
    click.echo("Install the version of before, then start the daemon.")


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
