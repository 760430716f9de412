"""The client's side of the control socket."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import trio

from broker.errors import ValidationFailed
from protocols.control.wire import ControlAnswer, ControlRequest, receive_all, short_name, socket_path


class ControlUnavailableError(Exception):
    """No daemon listens on the control socket."""


class ControlFailedError(Exception):
    """The daemon refused the command or failed to run it."""


async def send_command(state_dir: Path, command: str, arguments: Mapping[str, Any]) -> Any:
    """Send a command to the daemon that runs on this state directory; return the `data` of its answer.

    Raises:
        ControlUnavailableError: no daemon listens there.
        ValidationFailed: the daemon refused the arguments, with findings.
        ControlFailedError: the socket may not be opened, or the daemon refused the command or failed to run it.
    """
    path = socket_path(state_dir)
    try:
        with short_name(path) as name:
            stream = await trio.open_unix_socket(name)
    except PermissionError as error:
        raise ControlFailedError(f"{path}: permission denied: be the daemon's user, or root") from error
    except OSError as error:
        raise ControlUnavailableError(f"{path}: {error.strerror or error}") from error
    async with stream:
        try:
            await stream.send_all(msgspec.json.encode(ControlRequest(command, dict(arguments))))
            await stream.send_eof()
            content = await receive_all(stream)
            answer = msgspec.json.decode(content or b"", type=ControlAnswer)
        except (trio.BrokenResourceError, msgspec.DecodeError) as error:
            raise ControlFailedError("the daemon ended the conversation before it answered") from error
    if answer.error is None:
        return answer.data
    if answer.error.findings:
        raise ValidationFailed(answer.error.findings)
    raise ControlFailedError(answer.error.message)
