"""Builds scenes."""

import msgspec

from broker.accounts.room import AccountsRoom
from broker.cluster.leases import LeaseName
from broker.core import Core
from broker.device_types.room import DeviceTypesRoom
from broker.devices.room import DevicesRoom
from broker.messages.room import MessagesRoom
from broker.scenes.actions import Resolver
from broker.scenes.invalidation import Invalidation
from broker.scenes.scenes import Scenes
from broker.scenes.sending import SceneSender
from broker.wanted.wanted import Wanted


class ScenesRoom(msgspec.Struct, frozen=True):
    scenes: Scenes


async def open_scenes(
    core: Core,
    accounts: AccountsRoom,
    device_types: DeviceTypesRoom,
    devices: DevicesRoom,
    messages: MessagesRoom,
    wanted: Wanted,
) -> ScenesRoom:
    scenes = Scenes(
        core.database,
        core.clock,
        accounts.users,
        accounts.permissions,
        Resolver(devices.registry, device_types.catalog),
        SceneSender(core.database, devices.registry, messages.ingest, wanted),
    )
    accounts.claims.ends("Scenes", scenes.end_all_of)
    accounts.application_ends.ends("scene", scenes.end_all_of_application)
    invalidation = Invalidation(core.router, scenes)
    core.life.worker(
        "scenes", invalidation.run_forever, lease=core.leases.of(LeaseName.UPKEEP), statistics=invalidation.statistics
    )
    return ScenesRoom(scenes)
