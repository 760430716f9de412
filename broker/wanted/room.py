"""Builds wanted state."""

from broker.cluster.leases import LeaseName
from broker.core import Core
from broker.devices.room import DevicesRoom
from broker.limits.room import LimitsRoom
from broker.messages.room import MessagesRoom
from broker.wanted.following import Following
from broker.wanted.types import TypeChecks
from broker.wanted.wanted import Wanted


async def open_wanted(core: Core, devices: DevicesRoom, messages: MessagesRoom, limits: LimitsRoom) -> Wanted:
    following = Following(
        core.database, core.router, core.news, core.clock, core.leases.of(LeaseName.UPKEEP), messages.follower
    )
    await following.resume()
    core.life.worker("wanted", following.run_forever, statistics=following.statistics)
    wanted = Wanted(core.database, core.clock, devices.registry, messages.snapshots, following, limits.charged)
    types = await core.database.read(lambda tx: tx.wanted.types())
    changed = TypeChecks(wanted.check_type, core.router, types)
    core.life.worker("wanted of changed types", changed.run_forever)
    return wanted
