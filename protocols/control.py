"""The local control socket: how commands reach a running daemon.

A client connects to `state_dir/control.sock`, sends one JSON object `{"command": …, "arguments": {…}}`, closes its
sending side, and reads one JSON object: `{"data": …}` or `{"error": {"message": …, "findings": […]}}`. The socket has
mode 0600 in a directory of mode 0700: whoever may open it owns the daemon's files anyway. `COMMANDS` is the list of
what can be asked.
"""

import os
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import structlog
import trio

from broker.errors import DomainError, Finding, ValidationFailed
from broker.ids import new_id
from broker.services import Services
from protocols.monetization_commands import MONETIZATION_COMMANDS
from protocols.type_commands import TYPE_COMMANDS
from storage.sql import StoreError

_SOCKET = "control.sock"
_MAX_BYTES = 64 * 1024 * 1024  # a provision file with its Manifests
_MAX_CONNECTIONS = 4
_CLIENT_SECONDS = 30  # to send a request, and again to take its answer
_log = structlog.get_logger(__name__)


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    command: str
    arguments: dict[str, Any]


class Failure(msgspec.Struct, frozen=True):
    message: str
    findings: tuple[Finding, ...] = ()


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    data: Any = None
    error: Failure | None = None


class ControlUnavailableError(Exception):
    """Nobody answers on the control socket."""


class ControlFailedError(Exception):
    """The daemon could not do what it was asked."""


class _Provision(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    document: dict[str, Any]
    dry_run: bool = False


async def _provision(services: Services, arguments: Mapping[str, Any]) -> object:
    wanted = msgspec.convert(arguments, _Provision)
    return await services.provisioning.apply(wanted.document, dry_run=wanted.dry_run)


#: What the listeners count, by the name that each has in the answer.
Counters = Mapping[str, Callable[[], object]]
Command = Callable[[Services, Mapping[str, Any]], Awaitable[object]]


async def _statistics(counters: Counters, services: Services, _arguments: Mapping[str, Any]) -> object:
    return {**services.core.life.statistics(), **{name: count() for name, count in counters.items()}}


COMMANDS: Mapping[str, Command] = {
    "provision": _provision,
    "statistics": partial(_statistics, {}),
    **TYPE_COMMANDS,
    **MONETIZATION_COMMANDS,
}


async def serve_control(
    services: Services,
    state_dir: Path,
    *,
    counters: Counters | None = None,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Answer commands until cancelled. The caller holds the lock of the state directory.

    Args:
        services: the broker.
        state_dir: where the socket goes.
        counters: of the listeners; the command `statistics` shows them behind the broker's own.
        task_status: told when the socket listens.
    """
    commands: Mapping[str, Command] = {**COMMANDS, "statistics": partial(_statistics, counters or {})}
    path = state_dir / _SOCKET
    path.unlink(missing_ok=True)  # what a killed daemon left; nobody listens there, because we have the lock
    listener = trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_STREAM)
    limit = trio.CapacityLimiter(_MAX_CONNECTIONS)

    async def converse(stream: trio.SocketStream) -> None:
        async with limit:
            await _converse(services, commands, stream)

    try:
        with _short(path) as name:
            await listener.bind(name)
        path.chmod(0o600)  # before it listens: until then nobody can connect
        listener.listen()
        task_status.started()
        await trio.serve_listeners(converse, [trio.SocketListener(listener)])
    finally:
        listener.close()
        path.unlink(missing_ok=True)


async def _converse(services: Services, commands: Mapping[str, Command], stream: trio.SocketStream) -> None:
    async with stream:
        try:
            with trio.fail_after(_CLIENT_SECONDS):
                content = await _receive_all(stream)
            answer = msgspec.json.encode(await _answer(services, commands, content))
            with trio.fail_after(_CLIENT_SECONDS):
                await stream.send_all(answer)
        except (trio.BrokenResourceError, trio.TooSlowError):
            _log.warning("control_client_left")


async def _answer(services: Services, commands: Mapping[str, Command], content: bytes | None) -> Answer:
    if content is None:
        return Answer(error=Failure(f"the request is larger than {_MAX_BYTES} bytes"))
    try:
        request = msgspec.json.decode(content, type=Request)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return Answer(error=Failure(f"not a request: {error}"))
    command = commands.get(request.command)
    if command is None:
        return Answer(error=Failure(f"this daemon does not know the command {request.command!r}"))
    try:
        return Answer(data=await command(services, request.arguments))
    except ValidationFailed as error:
        return Answer(error=Failure(str(error), error.findings))
    except msgspec.ValidationError as error:
        return Answer(error=Failure(f"{request.command}: {error}"))
    except (DomainError, StoreError) as error:
        return Answer(error=Failure(str(error)))
    except Exception:  # noqa: BLE001 - the boundary of one connection: our bug, and it stays in here
        error_id = new_id()
        _log.exception("control_command_failed", command=request.command, error_id=error_id)
        return Answer(error=Failure(f"internal error {error_id}; the daemon's log says more"))


async def call(state_dir: Path, command: str, arguments: Mapping[str, Any]) -> Any:
    """Ask the daemon that runs on this state directory.

    Raises:
        ControlUnavailableError: nobody listens there.
        ValidationFailed: the daemon refused the arguments, with findings.
        ControlFailedError: the daemon could not do it.
    """
    try:
        with _short(state_dir / _SOCKET) as name:
            stream = await trio.open_unix_socket(name)
    except OSError as error:
        raise ControlUnavailableError(f"{state_dir / _SOCKET}: {error.strerror or error}") from error
    async with stream:
        try:
            await stream.send_all(msgspec.json.encode(Request(command, dict(arguments))))
            await stream.send_eof()
            content = await _receive_all(stream)
            answer = msgspec.json.decode(content or b"", type=Answer)
        except (trio.BrokenResourceError, msgspec.DecodeError) as error:
            raise ControlFailedError("the daemon ended the conversation before it answered") from error
    if answer.error is None:
        return answer.data
    if answer.error.findings:
        raise ValidationFailed(answer.error.findings)
    raise ControlFailedError(answer.error.message)


async def _receive_all(stream: trio.SocketStream) -> bytes | None:
    """Everything up to the peer's end of sending; None when that is too much."""
    content = bytearray()
    async for chunk in stream:
        content += chunk
        if len(content) > _MAX_BYTES:
            return None
    return bytes(content)


@contextmanager
def _short(path: Path) -> Iterator[str]:
    """A name for `path` that fits into a socket address (108 bytes), however deep its folder lies."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
