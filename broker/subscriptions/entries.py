"""The messages and Actions of notifications, as they go out."""

from collections.abc import Mapping, Sequence
from functools import partial
from hashlib import blake2b

from broker.devices.registry import Device, Devices
from broker.errors import DeviceNotFound
from broker.messages.history import MessageHistory
from broker.messages.mids import Mids
from broker.subscriptions.outlets import Outlets, Row, Taken
from broker.subscriptions.port import Entry
from storage.database import Database, Transaction
from storage.deliveries import NotificationRecord
from storage.keys import DeviceKey, Position
from storage.records import ActionRow


class NotificationIds:
    """Public ids of notifications: made of their keys, as those of messages are made of their positions."""

    def __init__(self, mid_key: bytes) -> None:
        """`mid_key` is the secret of message ids; that of notifications is derived from it."""
        self._tagged = Mids(blake2b(key=mid_key, person=b"notifications").digest()[:32])

    def id_of(self, key: int) -> str:
        return self._tagged.mid(Position(key))

    def key_of(self, id_: str) -> int | None:
        """None when this store never gave out the id."""
        return self._tagged.position(id_)


#: The positions of a notification, and whether they are those of Actions.
_Wanted = tuple[Sequence[Position], bool]


class NotificationEntries:
    def __init__(self, database: Database, devices: Devices, history: MessageHistory) -> None:
        self._database = database
        self._devices = devices
        self._history = history

    async def of(self, taken: Sequence[Taken]) -> list[Entry]:
        """Rows as clients see them."""
        found: list[Entry] = []
        for one in taken:
            if isinstance(one.row, ActionRow):
                found.append(await self._history.action_view(one.row, one.device))
            else:
                found.append(self._history.view(one.row, one.device))
        return found

    async def taken(self, records: Sequence[NotificationRecord], outlets: Outlets) -> list[list[Taken]]:
        """The rows of notifications, except rows that are deleted or no longer allowed."""
        wanted = []
        for record in records:
            outlet = outlets.get(record.subscription)
            wanted.append((record.positions, outlet is not None and outlet.subscription.is_of_actions))
        found = []
        for record, rows in zip(records, await self._rows(wanted), strict=True):
            outlet = outlets.get(record.subscription)
            found.append([one for one in rows if outlet is not None and outlet.covers(one.device)])
        return found

    async def rows(self, positions: Sequence[Position], *, are_actions: bool) -> list[Taken]:
        """Rows by their positions, except rows that are deleted or of deleted devices."""
        (found,) = await self._rows([(positions, are_actions)])
        return found

    async def _rows(self, wanted: Sequence[_Wanted]) -> list[list[Taken]]:
        if not wanted:
            return []
        found = await self._database.read(partial(_rows, wanted))
        devices: dict[DeviceKey, Device | None] = {}
        for key in {row.device for rows in found for row in rows}:
            try:
                devices[key] = await self._devices.get(key)
            except DeviceNotFound:
                devices[key] = None
        return [[Taken(row, device) for row in rows if (device := devices[row.device]) is not None] for rows in found]


def _rows(wanted: Sequence[_Wanted], tx: Transaction) -> list[list[Row]]:
    found: list[list[Row]] = []
    for positions, are_actions in wanted:
        rows: Mapping[Position, Row] = (
            tx.messages.actions_at(positions) if are_actions else tx.messages.messages_at(positions)
        )
        found.append([rows[position] for position in positions if position in rows])
    return found
