"""Asking the running daemon, for commands that only make sense while one runs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import trio

from config.settings import load_settings
from protocols.cli.daemon_failures import failures_reported
from protocols.cli.failures import CommandError
from protocols.control import ControlUnavailableError, call


def ask_daemon(config: Path | None, command: str, arguments: Mapping[str, Any], *, about: Path | None = None) -> Any:
    """What the daemon answers.

    Raises CommandError with a line for the operator; `about` is the file that may be at fault.
    """
    with failures_reported(about=about):
        settings = load_settings(config)
        try:
            return trio.run(call, settings.state_dir, command, arguments)
        except ControlUnavailableError as error:
            raise CommandError(f"no daemon runs on {settings.state_dir}") from error
