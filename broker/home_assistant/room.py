"""Builds what announces devices to Home Assistant."""

from functools import partial

import msgspec

from broker.core import Core
from broker.devices.room import DevicesRoom
from broker.found.room import FoundRoom
from broker.home_assistant.publishing import HomeAnnouncer, HomeStatistics
from broker.home_assistant.topics import ReservedTopics
from broker.messages.room import MessagesRoom
from broker.topics.room import TopicsRoom


class HomeAssistantRoom(msgspec.Struct, frozen=True):
    """`announcer` is None where topics are not open."""

    announcer: HomeAnnouncer | None


async def open_home_assistant(
    core: Core, devices: DevicesRoom, messages: MessagesRoom, topics: TopicsRoom, found: FoundRoom
) -> HomeAssistantRoom:
    if topics.space is None:
        core.life.observe("home assistant", partial(HomeStatistics, 0, 0, 0, 0))
        return HomeAssistantRoom(None)
    announcer = HomeAnnouncer(
        core.database,
        topics.space,
        devices.registry,
        devices.presence,
        messages.snapshots,
        messages.ingest,
        core.router,
        core.refusals,
        core.settings.home_assistant,
        core.settings.public_url,
        leaves_out=(lambda _device: False) if found.finder is None else found.finder.is_taken_over,
    )
    topics.access.reserve(ReservedTopics(announcer.prefixes, announcer.has_home, announcer.shows))
    topics.space.hear(announcer.hear)
    core.life.worker("home assistant", announcer.run_forever, statistics=announcer.statistics)
    return HomeAssistantRoom(announcer)
