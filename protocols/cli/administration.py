"""Runs the commands of operators, on a running daemon or also on a stopped daemon's store, and prints lists."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec
import trio

from config.loading import load_settings
from protocols.cli.anywhere import run_anywhere
from protocols.cli.daemon_failures import failures_reported
from protocols.cli.failures import CommandError
from protocols.control.client import ControlUnavailableError, send_command

T = TypeVar("T")

json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object in each line.")


def administer(
    config: Path | None, command: str, arguments: Mapping[str, Any], kind: type[T], *, about: Path | None = None
) -> T:
    """Run a command of `protocols.control.server.COMMANDS`. Without a store nothing is made. `about`: the file that
    findings are about. Raises CommandError."""
    with failures_reported(about=about):
        settings = load_settings(config)
        run = partial(run_anywhere, settings, command, arguments, begins_store=False)
        return msgspec.convert(trio.run(run), kind)


def ask_daemon(
    config: Path | None, command: str, arguments: Mapping[str, Any], kind: type[T], *, about: Path | None = None
) -> T:
    """Send a command through the control socket; return the `data` of the answer as `kind`.

    Args:
        config: the daemon's configuration file, which names its state directory.
        command: one of `protocols.control.server.COMMANDS`.
        arguments: of the command.
        kind: of the answer.
        about: the file that validation findings are about.

    Raises:
        CommandError: with a line for the operator.
    """
    with failures_reported(about=about):
        settings = load_settings(config)
        try:
            return msgspec.convert(trio.run(send_command, settings.state_dir, command, arguments), kind)
        except ControlUnavailableError as error:
            raise CommandError(f"no daemon runs on {settings.state_dir}") from error


def print_lines(found: Iterable[T], line: Callable[[T], str], *, as_json: bool) -> None:
    for one in found:
        click.echo(msgspec.json.encode(one).decode() if as_json else line(one).rstrip())


def printable(text: str) -> str:
    """A user's text, escaped if it has control characters, which could control the operator's terminal."""
    return text if text.isprintable() else repr(text)
