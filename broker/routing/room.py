"""Builds what routes stored messages and events to open connections."""

from collections.abc import Callable

import msgspec

from broker.core import Core
from broker.devices.registry import Device
from broker.devices.room import DevicesRoom
from broker.routing.connections import Connections, DeliveryQuota
from broker.routing.events import Events
from broker.routing.feeds import Feeds
from storage.keys import DeviceKey


class RoutingRoom(msgspec.Struct, frozen=True):
    connections: Connections
    feeds: Feeds
    events: Events


async def open_routing(
    core: Core, devices: DevicesRoom, *, sender: Callable[[DeviceKey], Device | None], quota: DeliveryQuota | None
) -> RoutingRoom:
    """`sender` gives the device of a row that was stored just now; without a `quota`, no delivery is charged."""
    connections = Connections(core.router, core.clock, quota)
    core.life.observe("connections", connections.statistics)
    feeds = Feeds(core.router, sender)
    core.life.observe("feeds", feeds.statistics)
    events = Events(core.router, devices.registry)
    core.life.observe("events", events.statistics)
    return RoutingRoom(connections=connections, feeds=feeds, events=events)
