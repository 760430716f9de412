"""Names of objects in operators' commands, and the error for an unknown one."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from broker.devices.registry import Device
from broker.errors import DeviceNotFound, NotFound, ValidationFailed
from protocols.control.rooms import ControlRooms

_SHOWN: Final = 10


@dataclass(eq=False)
class UnknownObject(NotFound):
    """`what` is the kind of the object, and what the operator called it."""

    template = "there is no {what}"
    what: str


@contextmanager
def named(kind: str, name: object) -> Iterator[None]:
    """Say which object is missing, when the block raises NotFound."""
    try:
        yield
    except UnknownObject:
        raise
    except NotFound as error:
        raise UnknownObject(f"{kind} {name!r}") from error


async def device_called(rooms: ControlRooms, name: str, *, kind: str = "device") -> Device:
    """The device of this id, or else of this name.

    Raises:
        UnknownObject: there is none; `kind` says what was looked for.
        ValidationFailed: several have this name.
    """
    try:
        return await rooms.devices.registry.find(name)
    except DeviceNotFound:
        found = await rooms.devices.registry.called(name, limit=_SHOWN + 1)
    if not found:
        raise UnknownObject(f"{kind} {name!r}")
    if len(found) > 1:
        owners = {one.owner: await rooms.accounts.users.find(one.owner_id) for one in found}
        ids = [f"{one.id} of {owners[one.owner].email}" for one in found[:_SHOWN]]
        more = ", and more" if len(found) > _SHOWN else ""
        raise ValidationFailed.of("device", f"several are called {name!r}: give the id: {', '.join(ids)}{more}")
    return found[0]


async def with_ids(rooms: ControlRooms, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments of a command with the id of its device in place of the name: the audit log keeps ids.

    Raises as `device_called`.
    """
    name = arguments.get("device")
    return {**arguments, "device": (await device_called(rooms, name)).id} if isinstance(name, str) else arguments
