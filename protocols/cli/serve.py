"""`trunkline serve`: the daemon in the foreground."""

import os
import signal
import sys
import threading
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TextIO

import click
import structlog
import trio

from broker.services import Services
from config.loading import SettingsError, load_settings
from config.logging import configure_logging
from config.settings import Address, Settings
from protocols.cli.daemon_failures import failures_reported
from protocols.cli.failures import CommandError
from protocols.cli.options import config_option_with
from protocols.daemon import run_daemon
from protocols.operation.dry_start import dry_start
from protocols.operation.pausing_clock import PausingClock
from protocols.operation.start_check import start_problems

_log = structlog.get_logger(__name__)


@click.command()
@click.option("--check", is_flag=True, help="Look at configuration, certificates, key and store, and exit.")
@click.option("--dry-start", "dry", is_flag=True, help="Start once on a copy of the schema, on free ports, and exit.")
@click.option("--until-stdin-ends", is_flag=True, hidden=True, help="End with the process that started this one.")
@config_option_with("The configuration file; without it, only the TRUNKLINE_… environment variables count.")
def serve(check: bool, dry: bool, until_stdin_ends: bool, config: Path | None) -> None:
    """Serve devices and applications until SIGTERM or SIGINT. SIGHUP reloads certificates, log level, rates and limits.

    Exit status: 0 after a graceful stop, 2 for a bad configuration, 3 when a listener cannot be opened, 4 when the
    store cannot be opened, 5 when another node serves the store now, 6 when a daemon of the same node name does. With
    --check: 0 when nothing was found, else 2.
    """
    with failures_reported():
        settings = load_settings(config)
        if not settings.listeners:
            raise SettingsError(
                f"{config or 'environment'}: there is no listener: set http.bind, mqtt.bind or another one"
            )
        if check:
            configure_logging("warning", settings.log.format)
            _check(settings)
            return
        if dry:
            configure_logging("warning", settings.log.format)
            trio.run(dry_start, settings)
            click.echo(f"a daemon with this configuration starts: {', '.join(settings.listeners)}")
            return
        configure_logging(settings.log.level, settings.log.format)
        if until_stdin_ends:
            threading.Thread(target=_interrupt_with_stdin, daemon=True).start()
        try:
            with failures_reported():
                trio.run(
                    partial(run_daemon, settings, ready=announce, load=partial(load_settings, config)),
                    clock=PausingClock(),
                )
        except CommandError as error:
            if settings.log.format != "json":
                raise
            _log.error("not_started", reason=str(error), status=error.status)
            raise click.exceptions.Exit(error.status) from error


def _interrupt_with_stdin() -> None:
    """Stop with the parent: its pipe closes, also when it is killed."""
    os.read(0, 1)
    os.kill(os.getpid(), signal.SIGINT)


def _check(settings: Settings) -> None:
    """Say all that would keep the daemon from starting. Nothing is changed, and nothing listens."""
    found = start_problems(settings)
    for problem in found:
        click.echo(f"trunkline: {problem}", err=True)
    if found:
        raise click.exceptions.Exit(2)
    click.echo(f"configuration, certificates, key and store can be used: {', '.join(settings.listeners)}")


async def announce(services: Services, addresses: Mapping[str, Address]) -> None:
    """Print the ready line, which scripts wait for (reference 27.1). In the journal, it has the form of the log."""
    if services.core.settings.log.format == "json" and _is_journal(sys.stdout):
        _log.info("ready", **{name: " ".join(map(str, address.all)) for name, address in addresses.items()})
        return
    listeners = "".join(f" {name}={one}" for name, address in addresses.items() for one in address.all)
    click.echo(f"trunkline ready{listeners}")  # click flushes


def _is_journal(stream: TextIO) -> bool:
    """Whether systemd has connected the stream with its journal (systemd.exec(5), $JOURNAL_STREAM)."""
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError):  # not a file
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"
