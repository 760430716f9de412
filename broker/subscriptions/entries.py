"""The messages and Actions of notifications, as they go out."""

from collections.abc import Mapping, Sequence
from functools import partial
from hashlib import blake2b

from msgspec.structs import replace

from broker.accounts.permissions import Permission, Reach
from broker.alarm_views import AlarmView, decode_cause, devices_told_of
from broker.devices.registry import Device, Devices
from broker.errors import DeviceNotFound
from broker.messages.history import MessageHistory
from broker.messages.mids import Mids
from broker.subscriptions.outlets import Outlets, Row, Taken
from broker.subscriptions.port import Entry
from storage.database import Database
from storage.deliveries import NotificationRecord
from storage.keys import DeviceKey, Position
from storage.records import ActionRow
from storage.transaction import Transaction


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
    def __init__(self, database: Database, devices: Devices, history: MessageHistory, mids: Mids) -> None:
        self._database = database
        self._devices = devices
        self._history = history
        self._mids = mids

    async def of(self, taken: Sequence[Taken]) -> list[Entry]:
        """Rows as clients see them."""
        found: list[Entry] = []
        for one in taken:
            if isinstance(one.row, ActionRow):
                found.append(await self._history.action_view(one.row, one.device))
            else:
                found.append(self._history.view(one.row, one.device))
        return found

    async def alarm(self, record: NotificationRecord, reach: Reach) -> list[AlarmView]:
        """The alarm of a notification as it was, with its texts as far as they are still there and may be read."""
        alarm = record.alarm
        if alarm is None:
            return []
        known = await self._database.read(lambda tx: tx.alarms.by_key(alarm.key))
        if known is None or known.id != alarm.id:
            return [AlarmView(alarm, [], None, is_readable=False)]
        cause = decode_cause(known.cause)
        devices = (await self._devices.find_all(devices_told_of(known, cause))).values()
        is_readable = all(device is not None and reach.allows(device, Permission.READ) for device in devices)
        shown = replace(alarm, text=known.text, message=known.message)
        mid = None if known.message is None or not is_readable else self._mids.mid(known.message)
        return [AlarmView(shown, cause, mid, is_readable=is_readable)]

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
