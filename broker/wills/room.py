"""Builds the wills of MQTT connections."""

from broker.core import Core
from broker.device_sessions.room import DeviceSessionsRoom
from broker.devices.room import DevicesRoom
from broker.limits.room import LimitsRoom
from broker.messages.room import MessagesRoom
from broker.topics.room import TopicsRoom
from broker.wills.wills import Wills


async def open_wills(
    core: Core,
    devices: DevicesRoom,
    limits: LimitsRoom,
    messages: MessagesRoom,
    device_sessions: DeviceSessionsRoom,
    topics: TopicsRoom,
) -> Wills:
    wills = Wills(core, devices.registry, messages.ingest, topics, limits.overhead)
    device_sessions.all.on_begin(wills.begun)
    await wills.resume()
    core.life.worker("mqtt wills", wills.publish_forever, statistics=wills.statistics)
    return wills
