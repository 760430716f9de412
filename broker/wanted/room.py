"""Builds wanted state."""

from broker.cluster.leases import LeaseName
from broker.core import Core
from broker.messages.room import MessagesRoom
from broker.wanted.following import Following
from broker.wanted.wanted import Wanted


async def open_wanted(core: Core, messages: MessagesRoom) -> Wanted:
    following = Following(
        core.database, core.router, core.news, core.clock, core.leases.of(LeaseName.UPKEEP), messages.follower
    )
    await following.resume()
    core.life.worker("wanted", following.run_forever, statistics=following.statistics)
    return Wanted(core.database, core.clock, messages.snapshots, following)
