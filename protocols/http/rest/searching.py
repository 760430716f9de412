"""What searches of messages and of Actions have in common (reference 9.3): whose, when, and which page."""

import re
from dataclasses import dataclass
from typing import Final

from broker.accounts.permissions import Permission
from broker.accounts.tokens import Caller
from broker.devices.registry import Device
from broker.errors import PermissionDenied
from broker.messages.history import SortOrder
from broker.services import Services
from protocols.http.body import Query

ORDERS: Final[tuple[SortOrder, ...]] = ("asc", "desc")
FIELD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")


@dataclass(frozen=True, slots=True)
class Times:
    """The part of a search that says when, in which order, and which page."""

    start_ms: int
    end_ms: int
    order: SortOrder
    count: int
    cursor: str

    @classmethod
    def of(cls, query: Query) -> "Times":
        """Findings wait in the query."""
        start_ms = query.number("startDate", required=True)
        end_ms = query.number("endDate", required=True)
        if start_ms is not None and end_ms is not None and start_ms > end_ms:
            query.refuse("startDate", "Invalid value")
        order: SortOrder = "desc" if query.choice("order", ORDERS, "asc") == "desc" else "asc"
        return cls(start_ms or 0, end_ms or 0, order, query.count(), query.text("offset") or "")


def field_presence(query: Query) -> str | None:
    """A dotted path. Findings wait in the query."""
    field = query.text("fieldPresence")
    if field is not None and FIELD.fullmatch(field) is None:
        query.refuse("fieldPresence", "Invalid value")
    return field


def filtered_values(query: Query) -> tuple[tuple[str, str], ...]:
    """`filter`: pairs of a dotted path and a text. Findings wait in the query."""
    pairs = [item.partition("=") for item in query.ids("filter")]
    if any(FIELD.fullmatch(path.strip()) is None or not value.strip() for path, _, value in pairs):
        query.refuse("filter", "Invalid value")
    return tuple((path.strip(), value.strip()) for path, _, value in pairs)


class Readable:
    """The devices that a search is about, each with the caller's right to read it checked."""

    def __init__(self, services: Services) -> None:
        self._users = services.accounts.users
        self._devices = services.devices.registry
        self._permissions = services.accounts.permissions

    async def user_for(self, caller: Caller, uid: str) -> str:
        """The id of a user the caller acts for. A device acts for its owner as far as its own messages go."""
        user = await self._users.find(uid, caller)
        if caller.device is None:
            await self._permissions.require_user(caller, user.key)
        elif (await self._devices.get(caller.device)).owner != user.key:
            raise PermissionDenied("access to this user")
        return user.id

    async def chosen(self, caller: Caller, query: Query, name: str) -> tuple[str | None, str | None, list[Device]]:
        """The owner, the device called `name` if there is one, and all devices that a search is about."""
        uid = query.text("uid")
        device_id = query.text(name) or caller.device_id
        if device_id is not None:
            device = await self.device(caller, device_id)
            if uid is not None and (await self._users.find(uid, caller)).key != device.owner:
                query.refuse("uid", "Invalid value")
            return device.owner_id, device.id, [device]
        if uid is None and caller.user is None:
            query.refuse("uid", "Required parameter")
            return None, None, []
        user = await self._users.find(uid or "self", caller)
        await self._permissions.require_user(caller, user.key)
        reach = await self._permissions.reach(caller)
        devices = await self._devices.owned_by(user.key)
        return user.id, None, [device for device in devices if reach.allows(device, Permission.READ)]

    async def device(self, caller: Caller, device_id: str) -> Device:
        device = await self._devices.find(device_id)
        await self._permissions.require(caller, device, Permission.READ)
        return device

    async def listed(self, caller: Caller, device_ids: list[str]) -> list[Device]:
        """Each once. Raises DeviceNotFound, PermissionDenied."""
        devices = [await self._devices.find(device_id) for device_id in dict.fromkeys(device_ids)]
        reach = await self._permissions.reach(caller)
        for device in devices:
            if not reach.allows(device, Permission.READ):
                raise PermissionDenied(f"READ on device {device.id}")
        return devices
