"""An alarm may tell values of devices that its owner may not read any more (reference 12.12)."""

from collections.abc import Collection
from dataclasses import dataclass

from broker.alarm_views import decode_cause, devices_told_of
from broker.devices.registry import Devices
from storage.alarms import AlarmRecord
from storage.database import Database


@dataclass(eq=False)
class AlarmReaders:
    _database: Database
    _devices: Devices

    async def unreadable(self, alarms: Collection[AlarmRecord]) -> set[str]:
        """The ids of the alarms that may tell of a device which is gone, or which their owner may not read."""
        told = {alarm.id: devices_told_of(alarm, decode_cause(alarm.cause)) for alarm in alarms}
        devices = await self._devices.find_all({id_ for ids in told.values() for id_ in ids})
        found = set[str]()
        for alarm in alarms:
            seen = [devices[id_] for id_ in told[alarm.id]]
            if any(one is None or not one.is_held_by(alarm.owner) for one in seen):
                found.add(alarm.id)
        return found

    async def may_read(self, ids: Collection[str]) -> bool:
        """Whether the owners of all these alarms may read what they tell. Nobody may of one that is deleted."""
        alarms = await self._database.read(lambda tx: tx.alarms.by_ids(ids))
        return len(alarms) == len(set(ids)) and not await self.unreadable(alarms)
