"""The audit log on the control socket: `trunkline audit` reads it, and operators' commands are written into it."""

import socket
import struct
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec
import trio
from msgspec.structs import replace

from broker.trace.audit import AuditEvent, entry_of
from broker.trace.origin import Origin, enter
from protocols.control.lines import AUDIT_MAX
from protocols.control.rooms import ControlRooms
from storage.records import AuditFilter
from storage.sql import StoreError

#: Commands that change nothing and show no secret.
_READING: Final = frozenset(
    {
        "app list",
        "audit",
        "device list",
        "device show",
        "edge list",
        "edge origin",
        "forward list",
        "found list",
        "payments",
        "plans",
        "statistics",
        "type failures",
        "type list",
    }
    | {"user list", "user show", "limits", "listeners", "drain standing"}
)
#: The arguments that name what a command is about.
_OBJECTS: Final = ("device_type", "reference", "file", "device", "application", "user", "found", "edge", "forward")
_CREDENTIALS: Final = struct.Struct("3i")  # pid, uid, gid (unix(7), SO_PEERCRED)


async def _audit(rooms: ControlRooms, arguments: Mapping[str, Any]) -> object:
    wanted = msgspec.convert(arguments, AuditFilter)
    return await rooms.core.audit.find(replace(wanted, limit=min(wanted.limit, AUDIT_MAX)))


AUDIT_COMMANDS: Mapping[str, Callable[[ControlRooms, Mapping[str, Any]], Awaitable[object]]] = {"audit": _audit}


def enter_operator(stream: trio.SocketStream) -> None:
    """Have the current task work for the operating system's user at the other end of the control socket."""
    sent = stream.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _pid, uid, _gid = _CREDENTIALS.unpack(sent)
    enter(Origin("control socket", f"operator {uid}"))


async def note_command(rooms: ControlRooms, command: str, arguments: Mapping[str, Any], outcome: str) -> None:
    """Write a command that may have changed something into the audit log.

    A provision file that was applied has an entry of its own transaction; a dry run has none.
    """
    if command in _READING or (command == "provision" and (outcome == "done" or arguments.get("dry_run") is True)):
        return
    about = next((f"{name} {arguments[name]}" for name in _OBJECTS if isinstance(arguments.get(name), str)), "")
    now_ms = rooms.core.clock.now_ms()
    entry = entry_of(AuditEvent.COMMAND, about, now_ms=now_ms, outcome=outcome, command=command)
    try:
        await rooms.core.audit.write(entry)
    except StoreError:
        rooms.core.audit.put(entry)  # the command was answered by now; the worker tries again
