"""Asks the running daemon, for commands that need one."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import trio

from config.settings import load_settings
from protocols.cli.daemon_failures import failures_reported
from protocols.cli.failures import CommandError
from protocols.control.client import ControlUnavailableError, send_command


def ask_daemon(config: Path | None, command: str, arguments: Mapping[str, Any], *, about: Path | None = None) -> Any:
    """Send a command through the control socket; return the `data` of the answer.

    Args:
        config: the daemon's configuration file, which names its state directory.
        command: one of `protocols.control.server.COMMANDS`.
        arguments: of the command.
        about: the file that validation findings are about.

    Raises:
        CommandError: with a line for the operator.
    """
    with failures_reported(about=about):
        settings = load_settings(config)
        try:
            return trio.run(send_command, settings.state_dir, command, arguments)
        except ControlUnavailableError as error:
            raise CommandError(f"no daemon runs on {settings.state_dir}") from error
