"""Builds the open topic space."""

import msgspec

from broker.core import Core
from broker.device_sessions.room import DeviceSessionsRoom
from broker.facts import DeviceTakenOver, FactPhase
from broker.topics.access import TopicAccess
from broker.topics.space import TopicSpace


class TopicsRoom(msgspec.Struct, frozen=True):
    """`space` is None when there are the service's own topics only (reference 16.3)."""

    space: TopicSpace | None
    access: TopicAccess


async def open_topics(core: Core, device_sessions: DeviceSessionsRoom) -> TopicsRoom:
    space = TopicSpace(core.database, core.clock, device_sessions.all)
    core.life.observe("topics", space.statistics)
    access = TopicAccess(core.router, await core.database.read(lambda tx: tx.mqtt_topics.rules()))
    if core.settings.mqtt.topics == "service":
        return TopicsRoom(None, access)
    core.router.subscribe(DeviceTakenOver, lambda fact: space.hand_over(fact.device, fact.owner), FactPhase.STATE)
    await space.resume()
    return TopicsRoom(space, access)
