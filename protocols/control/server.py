"""The daemon's side of the control socket. `COMMANDS` lists what it can be asked."""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog
import trio

from broker.errors import DomainError, ValidationFailed
from broker.ids import new_id
from broker.nesting import check_nesting
from protocols.control.applications import APPLICATION_COMMANDS
from protocols.control.audit import AUDIT_COMMANDS, enter_operator, note_command
from protocols.control.device_types import DEVICE_TYPE_COMMANDS
from protocols.control.devices import DEVICE_COMMANDS
from protocols.control.forwarding import FORWARDING_COMMANDS
from protocols.control.found import FOUND_COMMANDS
from protocols.control.monetization import MONETIZATION_COMMANDS
from protocols.control.naming import with_ids
from protocols.control.operation import OPERATION_COMMANDS
from protocols.control.rooms import ControlRooms
from protocols.control.rules import RULE_COMMANDS
from protocols.control.users import USER_COMMANDS
from protocols.control.wire import (
    MAX_CONTROL_BYTES,
    ControlAnswer,
    ControlFailure,
    ControlRequest,
    receive_all,
    short_name,
    socket_path,
)
from protocols.errors import ListenerError
from protocols.operation.draining import Draining, ServesAlone
from protocols.streams.accepting import accept_forever
from storage.migrations import VERSION
from storage.sql import StoreError

_MAX_CONNECTIONS: Final = 4
_CLIENT_SECONDS: Final = 30  # for the client to send its request, and again to read the answer
_log = structlog.get_logger(__name__)


class _Provision(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    document: dict[str, Any]
    dry_run: bool = False
    force: bool = False
    survey: bool = False


async def _provision(rooms: ControlRooms, arguments: Mapping[str, Any]) -> object:
    wanted = msgspec.convert(arguments, _Provision)
    return await rooms.provisioning.apply(
        wanted.document, dry_run=wanted.dry_run, force=wanted.force, survey=wanted.survey
    )


#: Counters of the listeners, by the name of each in the answer to `statistics`.
Counters = Mapping[str, Callable[[], object]]
Command = Callable[[ControlRooms, Mapping[str, Any]], Awaitable[object]]


async def _statistics(counters: Counters, rooms: ControlRooms, _arguments: Mapping[str, Any]) -> object:
    return {**rooms.core.life.statistics(), **{name: count() for name, count in counters.items()}}


async def _listeners(rooms: ControlRooms, _arguments: Mapping[str, Any]) -> object:
    """The addresses of the ready line; none while the daemon is stopped."""
    return {name: [str(one) for one in address.all] for name, address in rooms.core.site.addresses.items()}


async def _drain(draining: Draining | None, _rooms: ControlRooms, _arguments: Mapping[str, Any]) -> object:
    if draining is None:
        raise ServesAlone
    return msgspec.to_builtins(await draining.ask())


async def _drain_standing(draining: Draining | None, _rooms: ControlRooms, _arguments: Mapping[str, Any]) -> object:
    if draining is None:
        raise ServesAlone
    return msgspec.to_builtins(draining.standing())


COMMANDS: Final[Mapping[str, Command]] = {
    "drain": partial(_drain, None),
    "drain standing": partial(_drain_standing, None),
    "listeners": _listeners,
    "provision": _provision,
    "statistics": partial(_statistics, {}),
    **APPLICATION_COMMANDS,
    **AUDIT_COMMANDS,
    **DEVICE_COMMANDS,
    **DEVICE_TYPE_COMMANDS,
    **FORWARDING_COMMANDS,
    **FOUND_COMMANDS,
    **MONETIZATION_COMMANDS,
    **OPERATION_COMMANDS,
    **RULE_COMMANDS,
    **USER_COMMANDS,
}


async def serve_control(
    rooms: ControlRooms,
    state_dir: Path,
    *,
    counters: Counters | None = None,
    draining: Draining | None = None,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Answer commands until cancelled. The caller holds the lock of the state directory.

    Args:
        rooms: the broker.
        state_dir: where the socket goes.
        counters: of the listeners; the command `statistics` shows them behind the broker's own.
        draining: of this daemon, which the command `drain` begins.
        task_status: told when the socket listens.

    Raises ListenerError: the socket cannot be made.
    """
    commands: Mapping[str, Command] = {
        **COMMANDS,
        "statistics": partial(_statistics, counters or {}),
        "drain": partial(_drain, draining),
        "drain standing": partial(_drain_standing, draining),
    }
    path = socket_path(state_dir)
    listener = trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_STREAM)
    limit = trio.CapacityLimiter(_MAX_CONNECTIONS)

    async def serve(stream: trio.SocketStream, _admitted: bool) -> None:
        async with limit:
            await _serve_client(rooms, commands, stream)

    try:
        try:
            path.unlink(missing_ok=True)  # a killed daemon has left it; the lock proves that no daemon listens there
            with short_name(path) as name:
                await listener.bind(name)
            path.chmod(0o600)  # before it listens: until then no process can connect
        except OSError as error:
            raise ListenerError(f"{path}: {error.strerror}") from error
        listener.listen()
        task_status.started()
        async with trio.open_nursery() as connections:
            await accept_forever(
                [trio.SocketListener(listener)],
                serve,
                lambda _: True,
                protocol="control",
                connections=connections,
            )
    finally:
        listener.close()
        with suppress(OSError):  # the next daemon removes it
            path.unlink(missing_ok=True)


async def _serve_client(rooms: ControlRooms, commands: Mapping[str, Command], stream: trio.SocketStream) -> None:
    async with stream:
        try:
            with trio.fail_after(_CLIENT_SECONDS):
                content = await receive_all(stream)
            enter_operator(stream)
            answer = msgspec.json.encode(await _run(rooms, commands, content))
            with trio.fail_after(_CLIENT_SECONDS):
                await stream.send_all(answer)
        except (trio.BrokenResourceError, trio.TooSlowError):
            _log.warning("control_client_left")


async def _run(rooms: ControlRooms, commands: Mapping[str, Command], content: bytes | None) -> ControlAnswer:
    if content is None:
        return _failure(f"the request is larger than {MAX_CONTROL_BYTES} bytes")
    try:
        check_nesting(content)
        request = msgspec.json.decode(content, type=ControlRequest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return _failure(f"not a request: {error}")
    command = commands.get(request.command)
    if command is None:
        return _failure(f"the running daemon, Trunkline {VERSION}, does not know the command {request.command!r}")
    arguments: Mapping[str, Any] = request.arguments
    outcome = "refused"
    try:
        arguments = await with_ids(rooms, arguments)
        data = await command(rooms, arguments)
        outcome = "done"
        return ControlAnswer(data=data)
    except ValidationFailed as error:
        return ControlAnswer(error=ControlFailure(str(error), error.findings))
    except msgspec.ValidationError as error:
        return _failure(f"{request.command}: the running daemon, Trunkline {VERSION}, does not take it: {error}")
    except (DomainError, StoreError) as error:
        return _failure(str(error))
    except Exception:  # noqa: BLE001 - a bug in one command must end only its connection
        error_id, outcome = new_id(), "failed"
        _log.exception("control_command_failed", command=request.command, error_id=error_id)
        return _failure(f"internal error {error_id}; the daemon's log says more")
    finally:
        await note_command(rooms, request.command, arguments, outcome)


def _failure(message: str) -> ControlAnswer:
    return ControlAnswer(error=ControlFailure(message))
