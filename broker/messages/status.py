"""The status of a device: its last message and Action, its availability and its snapshot (reference 6.4)."""

from collections.abc import Sequence
from dataclasses import dataclass

from broker.devices.presence import Presence
from broker.devices.registry import Device
from broker.messages.folds import Fields
from broker.messages.snapshots import Snapshots
from storage.database import Database


@dataclass(frozen=True, slots=True)
class DeviceStatus:
    """A time is None when there was none; `snapshot` is None when the caller did not ask for it."""

    last_message_ts: int | None
    last_action_ts: int | None
    availability: str  # online | offline | unknown
    last_time_online: int | None
    snapshot: Fields | None


class Statuses:
    """Callers check permissions."""

    def __init__(self, database: Database, presence: Presence, snapshots: Snapshots) -> None:
        self._database = database
        self._presence = presence
        self._snapshots = snapshots

    async def of(self, device: Device, *, with_snapshot: bool = True) -> DeviceStatus:
        return (await self.of_all([device], with_snapshot=with_snapshot))[0]

    async def of_all(self, devices: Sequence[Device], *, with_snapshot: bool = True) -> list[DeviceStatus]:
        """The statuses of many devices, in their order."""
        keys = [device.key for device in devices]
        presences = await self._presence.of_all(keys)
        messages, actions = await self._database.read(
            lambda tx: (tx.message_searches.last_ts("message", keys), tx.message_searches.last_ts("action", keys))
        )
        snapshots = await self._snapshots.of_all(keys) if with_snapshot else {}
        return [
            DeviceStatus(
                last_message_ts=messages.get(key),
                last_action_ts=actions.get(key),
                availability=presences[key].availability,
                last_time_online=presences[key].last_time_online,
                snapshot=snapshots.get(key),
            )
            for key in keys
        ]
