"""Builds alarms."""

import msgspec

from broker.alarms.alarms import AlarmBook
from broker.alarms.upkeep import AlarmUpkeep
from broker.cluster.leases import LeaseName
from broker.core import Core


class AlarmsRoom(msgspec.Struct, frozen=True):
    alarms: AlarmBook


async def open_alarms(core: Core) -> AlarmsRoom:
    lease = core.leases.of(LeaseName.UPKEEP)
    upkeep = AlarmUpkeep(core.database, core.clock, core.router, lease, core.settings.alarms.keep_days)
    core.life.worker("alarms", upkeep.run_forever, lease=lease, statistics=upkeep.statistics)
    return AlarmsRoom(AlarmBook(core.database, core.clock))
