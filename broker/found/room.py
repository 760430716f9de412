"""Builds what takes over devices that MQTT clients announce."""

from functools import partial

import msgspec

from broker.core import Core
from broker.device_sessions.room import DeviceSessionsRoom
from broker.device_types.room import DeviceTypesRoom
from broker.devices.room import DevicesRoom
from broker.found.commands import FoundCommands
from broker.found.finding import DeviceFinder, FoundStatistics
from broker.found.types import FoundTypes
from broker.messages.room import MessagesRoom
from broker.topics.room import TopicsRoom


class FoundRoom(msgspec.Struct, frozen=True):
    """`finder` is None where topics are not open: nothing is found."""

    finder: DeviceFinder | None


async def open_found(
    core: Core,
    device_types: DeviceTypesRoom,
    devices: DevicesRoom,
    messages: MessagesRoom,
    device_sessions: DeviceSessionsRoom,
    topics: TopicsRoom,
) -> FoundRoom:
    if topics.space is None:
        core.life.observe("found devices", partial(FoundStatistics, 0, 0, 0, 0, 0))
        return FoundRoom(None)
    finder = DeviceFinder(
        core.database,
        topics.space,
        devices.registry,
        devices.inventory,
        devices.presence,
        FoundTypes(core.database, device_types.catalog, device_types.making),
        messages.ingest,
        core.router,
        core.clock,
        core.refusals,
        core.settings.discover,
        FoundCommands(core.database, topics.space, device_sessions.all, core.clock),
    )
    topics.space.hear(finder.hear)
    core.life.worker("found devices", finder.run_forever, statistics=finder.statistics)
    core.life.worker("found commands", finder.commands.run_forever)
    return FoundRoom(finder)
