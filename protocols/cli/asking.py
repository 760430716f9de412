"""Asks the running daemon, for commands that need one."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import trio

from config.settings import load_settings
from protocols.cli.daemon_failures import failures_reported
from protocols.cli.failures import CommandError
from protocols.control.client import ControlUnavailableError, send_command

T = TypeVar("T")


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
