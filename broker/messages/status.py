"""The status of a device: its last message and Action, its availability and its snapshot (reference 6.4)."""

from collections.abc import Sequence

import msgspec

from broker.clock import Clock
from broker.devices.presence import Presence
from broker.devices.registry import Device
from broker.messages.folds import Fields
from broker.messages.snapshots import Snapshots
from storage.database import Database


class DeviceStatus(msgspec.Struct, frozen=True):
    """A time is None when there was none; `snapshot` is None when the caller did not ask for it.

    No time is ahead of the clock: what came while the clock was ahead has the time of now.
    """

    last_message_ts: int | None
    last_action_ts: int | None
    availability: str  # online | offline | unknown
    last_time_online: int | None
    snapshot: Fields | None


class Statuses:
    """Callers check permissions."""

    def __init__(self, database: Database, clock: Clock, presence: Presence, snapshots: Snapshots) -> None:
        self._database = database
        self._clock = clock
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
        now_ms = self._clock.now_ms()
        return [
            DeviceStatus(
                last_message_ts=_past(messages.get(key), now_ms),
                last_action_ts=_past(actions.get(key), now_ms),
                availability=presences[key].availability,
                last_time_online=presences[key].last_time_online,
                snapshot=snapshots.get(key),
            )
            for key in keys
        ]


def _past(at_ms: int | None, now_ms: int) -> int | None:
    return None if at_ms is None else min(at_ms, now_ms)
