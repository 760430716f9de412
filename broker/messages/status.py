"""The status of a device: what it sent and got last, and whether it is there (compatibility.md 6.4)."""

from dataclasses import dataclass

from broker.devices.presence import Presence
from broker.devices.registry import Device
from broker.messages.snapshots import Fields, Snapshots
from storage.database import Database


@dataclass(frozen=True, slots=True)
class DeviceStatus:
    """None is what never happened; `snapshot` is None when it was not asked for."""

    last_message_ts: int | None
    last_action_ts: int | None
    availability: str  # online | offline | unknown
    last_time_online: int | None
    snapshot: Fields | None


class Statuses:
    """Rights are the caller's business."""

    def __init__(self, database: Database, presence: Presence, snapshots: Snapshots) -> None:
        self._database = database
        self._presence = presence
        self._snapshots = snapshots

    async def of(self, device: Device, *, with_snapshot: bool = True) -> DeviceStatus:
        key = device.key
        presence = await self._presence.of(key)
        last_message_ts, last_action_ts = await self._database.read(
            lambda tx: (tx.messages.last_ts("message", key), tx.messages.last_ts("action", key))
        )
        return DeviceStatus(
            last_message_ts=last_message_ts,
            last_action_ts=last_action_ts,
            availability=presence.availability,
            last_time_online=presence.last_time_online,
            snapshot=await self._snapshots.of(key) if with_snapshot else None,
        )
