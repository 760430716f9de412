"""`trunkline backup` and `trunkline restore`: everything in one file, and back (reference 27.9)."""

import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from contextvars import copy_context
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import click
import trio
from click.termui import progressbar

from broker.backup.archive import BackupError, CopyPace
from broker.trace.audit import AuditEvent, entry_of
from broker.trace.origin import Origin, enter
from config.loading import load_settings
from config.logging import configure_logging
from config.settings import Settings
from protocols.cli.daemon_failures import failures_reported
from protocols.cli.failures import CommandError
from protocols.cli.options import config_option
from protocols.control.client import ControlUnavailableError, send_command
from protocols.errors import StateInUseError, require_store
from protocols.operation.backup import MIB, BackupNotWrittenError, Copied, make_backup, make_folder, name_by_time
from protocols.operation.restore import restore_backup
from protocols.operation.state import lock_state
from storage.audit import AuditStore
from storage.engines import StoreAnywhere, engine_of

T = TypeVar("T")
_RATE_MIB: Final = 32
_NAMED: Final = re.compile(r"trunkline-[0-9]{8}T[0-9]{12}Z\.tar\.gz")
_WAIT_SECONDS: Final = 10  # for a daemon that starts or stops
_RETRY_SECONDS: Final = 0.1
_TOLD: Final = {
    "included": "with the key in the clear",
    "sealed": "with the key under the passphrase",
    "left out": "without the key",
}

_passphrase_option = click.option(
    "--passphrase-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Its first line is the passphrase of the key in the backup.",
)
_key_option = click.option(
    "--key-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Where the key is, if not in the state directory: the source of systemd's credential.",
)


@click.command()
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option(
    "--rate", type=click.FloatRange(min=0.1), default=_RATE_MIB, show_default=True, help="MiB copied a second."
)
@click.option("--keep", type=click.IntRange(min=1), metavar="N", help="In a directory: keep the newest N backups.")
@click.option("--without-key", is_flag=True, help="Leave the key out: you keep a copy of it elsewhere.")
@_passphrase_option
@_key_option
@config_option
def backup(
    file: Path | None,
    rate: float,
    keep: int | None,
    without_key: bool,
    passphrase_file: Path | None,
    key_file: Path | None,
    config: Path | None,
) -> None:
    """Write everything that the daemon keeps into FILE: the store with all messages and files, and the key.

    Works with a running daemon, which goes on storing, and with a stopped one. FILE must be new; in a directory, the
    time names it. Without FILE it goes where those of the operator's page go (console.backup_dir), and the newest
    (console.keep_backups) are kept. A name that ends in .gz or .tgz is compressed. FILE gets mode 0600: who reads it
    reads everything.
    """
    if without_key and passphrase_file is not None:
        raise CommandError("--without-key and --passphrase-file exclude each other", 2)
    if keep is not None and file is not None and not file.is_dir():
        raise CommandError(f"--keep: {file} is not a directory", 2)
    with _failures_told():
        settings = load_settings(config)
        configure_logging("warning", settings.log.format)
        passphrase = None if passphrase_file is None else _first_line(passphrase_file)
        require_store(settings)
        if file is None:
            file, keep = settings.backup_dir, keep or settings.console.keep_backups
            try:
                make_folder(settings, file)
            except OSError as error:
                raise BackupNotWrittenError(f"{file}: {error.strerror or error}") from error
        target = name_by_time(file) if file.is_dir() else file
        with _noted(settings, target), _progress("backup", CopyPace(rate * MIB).spend) as copied:
            made = make_backup(settings, target, key_file, passphrase, has_key=not without_key, copied=copied)
    click.echo(f"{made.path}: {made.size / MIB:,.1f} MiB, {_TOLD[made.key]}")
    click.echo(f"SHA-256 {made.sha256}")
    if keep is not None:
        _remove_older(file, keep)


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@_passphrase_option
@_key_option
@config_option
def restore(file: Path, passphrase_file: Path | None, key_file: Path | None, config: Path | None) -> None:
    """Put back what `trunkline backup` has written into FILE, into a state directory without a store.

    Stop the daemon first, and move its store away, if there is one; a database of PostgreSQL is a new one. Everything
    is checked before anything is put back.
    """
    with _failures_told():
        settings = load_settings(config)
        configure_logging("warning", settings.log.format)
        passphrase = None if passphrase_file is None else _first_line(passphrase_file)
        told = list[str]()
        try:
            with _progress("restore", lambda _more: None) as copied:
                # In a context of its own: the origin that the audit log gets is the origin of this work only.
                restoring = partial(
                    restore_backup, settings, file, passphrase, key_file, copied=copied, mended=told.append
                )
                manifest = copy_context().run(_as_operator, restoring)
        except StateInUseError as error:
            raise CommandError(f"{error}: a restore never touches a running daemon; stop it first", 4) from error
    for sentence in told:
        click.echo(sentence, err=True)
    click.echo(f"{settings.state_dir}: restored as of {manifest.made_at}, made by Trunkline {manifest.version}")


@contextmanager
def _failures_told() -> Iterator[None]:
    try:
        with failures_reported():
            yield
    except (BackupError, BackupNotWrittenError) as error:
        raise CommandError(str(error)) from error


def _as_operator(work: Callable[[], T]) -> T:
    enter(Origin("command line", f"operator {os.getuid()}"))
    return work()


@contextmanager
def _noted(settings: Settings, target: Path) -> Iterator[None]:
    """Write the backup into the audit log before it begins, and keep a stopped daemon from starting until its end.

    Raises:
        StateInUseError: another process holds the store and does not answer.
    """
    deadline = time.monotonic() + _WAIT_SECONDS
    arguments: dict[str, Any] = {"file": str(target.absolute())}
    while True:
        try:
            with lock_state(settings):
                noting = partial(_note, engine_of(settings), arguments["file"])
                copy_context().run(_as_operator, noting)
                yield
                return
        except StateInUseError as in_use:
            try:
                trio.run(send_command, settings.state_dir, "backup", arguments)
                break
            except ControlUnavailableError:
                if time.monotonic() > deadline:
                    raise in_use from None
        time.sleep(_RETRY_SECONDS)
    yield


def _note(engine: StoreAnywhere, file: str) -> None:
    with engine.snapshot() as snapshot:
        if not snapshot.is_current():  # of an older version: it must stay as that version has left it
            return
    with closing(engine.open(read_only=False)) as store:
        store.begin(write=True)
        entry = entry_of(AuditEvent.COMMAND, f"file {file}", now_ms=time.time_ns() // 1_000_000, command="backup")
        AuditStore(store).add(entry)
        store.commit()


@contextmanager
def _progress(label: str, wait: Callable[[int], None]) -> Iterator[Copied]:
    """A bar on a terminal, on stderr. `wait` is called with the bytes of each step."""
    with progressbar(length=1, label=label, file=sys.stderr) as bar:

        def copied(more: int, total: int) -> None:
            bar.length = max(total, 1)
            bar.update(more)
            wait(more)

        yield copied


def _first_line(path: Path) -> str:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{path}: {getattr(error, 'strerror', None) or 'not a text'}", 2) from error
    if not lines or not lines[0]:
        raise CommandError(f"{path}: its first line is empty", 2)
    return lines[0]


def _remove_older(folder: Path, keep: int) -> None:
    found = sorted(path for path in folder.iterdir() if _NAMED.fullmatch(path.name))
    for path in found[:-keep]:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise CommandError(f"{path}: {error.strerror}") from error
        click.echo(f"{path}: removed")
