"""Runs a command of the control socket on a stopped daemon's store, or sends it to the running daemon."""

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import msgspec
import trio

from config.settings import Settings
from protocols.control.client import ControlUnavailableError, send_command
from protocols.errors import STORE, StateInUseError, require_store
from protocols.operation.interpreter import importing
from storage.engines import engine_of, has_store

_WAIT_SECONDS: Final = 10  # for a daemon that starts or stops
_RETRY_SECONDS: Final = 0.1


async def run_anywhere(
    settings: Settings, command: str, arguments: Mapping[str, Any], *, begins_store: bool = True
) -> Any:
    """The data of the command's answer: an object of its own type, or what came of it in JSON.

    A daemon that starts or stops holds the store without answering, so this is repeated for some seconds.

    `begins_store`: whether the command may make a store where there is none.

    Raises:
        StateError: there is no store. StateInUseError: another process holds it and does not answer.
        DomainError: the command is refused. ControlFailedError: it is refused by the running daemon.
    """
    deadline = trio.current_time() + _WAIT_SECONDS
    while True:
        try:
            return await send_command(settings.state_dir, command, arguments)
        except ControlUnavailableError:
            pass
        if not begins_store:
            require_store(settings)
            begins_store = True  # it stays there: not to be asked again and again
        try:
            return await _run_on_store(settings, command, arguments)
        except StateInUseError:
            if trio.current_time() > deadline:
                raise
        await trio.sleep(_RETRY_SECONDS)


async def dry_run_anywhere(settings: Settings, command: str, arguments: Mapping[str, Any]) -> Any:
    """Run as `run_anywhere`, for a command that changes nothing: neither on a running daemon nor without one.

    The command runs on a copy of the store without its log. The copy is outside the state directory, nobody else may
    read it, and it is removed.
    """
    try:
        return await send_command(settings.state_dir, command, arguments)
    except ControlUnavailableError:
        pass
    from protocols.operation.state import key_file_of  # noqa: PLC0415 - as below

    with TemporaryDirectory(prefix="trunkline-") as folder:
        in_a_file = msgspec.structs.replace(settings.storage, url="sqlite")
        copied = msgspec.structs.replace(settings, state_dir=Path(folder) / "state", storage=in_a_file)
        copied.state_dir.mkdir(mode=0o700)
        key_path = None
        if has_store(settings):
            file, is_private = key_file_of(settings.state_dir, None)
            key_path = file.path if is_private else None  # a credential of systemd is found again
            _copy_without_log(settings, copied.state_dir / STORE)
        return await _run_on_store(copied, command, arguments, key_path=key_path)


def _copy_without_log(settings: Settings, target: Path) -> None:
    from storage.engines.sqlite import SqliteEngine  # noqa: PLC0415 - as below
    from storage.engines.sqlite_copy import LOGS, copy_without_log  # noqa: PLC0415 - as below
    from storage.store_copy import copy_rows  # noqa: PLC0415 - as below

    if not settings.storage.is_postgresql:
        copy_without_log(settings.state_dir / STORE, target)
        return
    with engine_of(settings, upgrades=False).snapshot() as snapshot:
        copy_rows(snapshot.rows, SqliteEngine(target, synchronous="off"), str(target), without=LOGS)


async def _run_on_store(
    settings: Settings, command: str, arguments: Mapping[str, Any], *, key_path: Path | None = None
) -> Any:
    # Imports the daemon, which takes a second: not needed where a running daemon answers.
    with importing("protocols.cli.on_store"):
        from config.logging import configure_logging  # noqa: PLC0415
        from protocols.cli.on_store import run_on_store  # noqa: PLC0415
        from protocols.operation.state import open_state  # noqa: PLC0415

    configure_logging("warning", settings.log.format)
    with open_state(settings, key_path=key_path) as state:
        return await run_on_store(settings, state, command, arguments)
