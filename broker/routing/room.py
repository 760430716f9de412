"""Builds what routes stored messages and events to open connections."""

from collections.abc import Callable
from typing import Protocol

import msgspec

from broker.core import Core
from broker.devices.registry import Device
from broker.devices.room import DevicesRoom
from broker.routing.claims import ConnectionClaims
from broker.routing.connections import Connections, DeliveryQuota
from broker.routing.events import Events
from broker.routing.feeds import Feeds
from broker.routing.permission_fence import PermissionFence
from storage.keys import DeviceKey


class RowsOfOthers(Protocol):
    """Publishes the rows of other nodes (broker/messages/follower.py)."""

    #: Whether somebody now needs each message.
    @property
    def wants_messages(self) -> list[Callable[[], bool]]: ...
    async def ready(self) -> None:
        """Somebody is about to. Raises StoreError."""


class RoutingRoom(msgspec.Struct, frozen=True):
    connections: Connections
    feeds: Feeds
    events: Events


async def open_routing(
    core: Core,
    devices: DevicesRoom,
    *,
    sender: Callable[[DeviceKey], Device | None],
    quota: DeliveryQuota | None,
    follower: RowsOfOthers | None = None,
) -> RoutingRoom:
    """`sender` gives the device of a row that was stored just now; without a `quota`, no delivery is charged.
    `follower` publishes the rows of other nodes."""
    connections = Connections(core.router, core.clock, quota)
    core.life.observe("connections", connections.statistics)
    if core.peers is None or follower is None:
        feeds = Feeds(core.router, sender, note_read=devices.readers.note_owners)
    else:
        claims = ConnectionClaims(core.database, core.news, core.peers.node, core.clock)
        connections.share(claims)
        core.life.worker("places of connections", claims.end_again_forever)
        fence = PermissionFence(connections.links)
        core.peers.refuse_with(fence.refusal)
        core.peers.refuse_works_with(fence.ends)
        feeds = Feeds(
            core.router,
            lambda key: sender(key) or devices.registry.get_nowait(key),
            follower.ready,
            devices.readers.note_owners,
        )
        follower.wants_messages.append(feeds.has_subscribers)
    core.life.observe("feeds", feeds.statistics)
    events = Events(core.router, devices.registry)
    core.life.observe("events", events.statistics)
    if core.peers is not None:
        events.share(core.news)
        core.life.worker("events of others", events.tell_of_others_forever)
    return RoutingRoom(connections=connections, feeds=feeds, events=events)
