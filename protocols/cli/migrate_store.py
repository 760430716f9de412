"""`trunkline migrate-store`: from SQLite to PostgreSQL, and back (reference 27.26)."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import click

from config.loading import load_settings
from config.logging import configure_logging
from protocols.cli.daemon_failures import failures_reported
from protocols.cli.failures import CommandError
from protocols.cli.options import config_option
from protocols.errors import StateInUseError
from protocols.operation.migrate_store import Migrated, copy_store_to
from storage.store_copy import CopyProgress, Tell

_SECONDS: Final = 0.5
_SECONDS_IN_FILE: Final = 10.0


@click.command(name="migrate-store")
@click.option("--to", required=True, metavar="URL|PATH", help="postgresql://USER@HOST/DATABASE, or a file for SQLite.")
@click.option(
    "--password-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Its first line is the password of URL.",
)
@click.option(
    "--key-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Where the key is, if not in the state directory: the source of systemd's credential.",
)
@config_option
def migrate_store(to: str, password_file: Path | None, key_file: Path | None, config: Path | None) -> None:
    """Copy the store into a database of PostgreSQL, or back into a file, and compare both.

    Stop the daemon first. The target is empty; when the command was interrupted, it is run again and goes on where it
    stopped. The store of before stays as it is. At the end the command says which line of the configuration to change.
    """
    with failures_reported():
        settings = load_settings(config)
        configure_logging("warning", settings.log.format)
        try:
            with _progress() as tell:
                done = copy_store_to(settings, to, password_file, key_file, tell=tell)
        except StateInUseError as error:
            raise CommandError(f"{error}: stop the daemon first", 4) from error
    for line in _told(done, password_file):
        click.echo(line)


def _told(done: Migrated, password_file: Path | None) -> Iterator[str]:
    report = done.report
    yield (
        f"{done.target}: {report.rows:,} rows of {report.tables} tables are copied and compared"
        f" ({report.seconds:,.0f} s{', after an interruption' if report.was_resumed else ''})"
    )
    if report.mended:
        yield report.mended
    if done.url == "sqlite" and not done.is_in_place:
        yield f"Move {done.target} into the state directory, as store.sqlite."
    yield f'Now write into the table [storage] of the configuration: url = "{done.url}"'
    if password_file is not None:
        yield f'and: password_file = "{password_file.absolute()}"'
    yield f"{done.source} stays as it is, and is no longer used. Start the daemon."


@contextmanager
def _progress() -> Iterator[Tell]:
    """One line that is written again and again on a terminal; elsewhere a line now and then, on stderr."""
    is_terminal = sys.stderr.isatty()
    pause = _SECONDS if is_terminal else _SECONDS_IN_FILE
    told_at = time.monotonic() - pause

    def tell(now: CopyProgress) -> None:
        nonlocal told_at
        if time.monotonic() - told_at < pause:
            return
        told_at = time.monotonic()
        line = f"{now.rows:,} of {now.total:,} rows"
        if now.is_comparing:
            line += f", comparing {now.table}"
        elif now.seconds_left is not None:
            line += f", {now.seconds_left:,.0f} s left"
        click.echo(f"\r\x1b[K{line}" if is_terminal else line, err=True, nl=not is_terminal)

    try:
        yield tell
    finally:
        if is_terminal:
            click.echo("\r\x1b[K", err=True, nl=False)
