"""Connected devices: one persistent connection per device token, enforced here for every protocol.

A device token has at most one persistent connection over the device channel, MQTT and CoAP observe together
(reference 16.1). A new connection is registered after its authentication; it replaces the old connection, which is
closed with a reason. The late cleanup of the old connection cannot harm the new one, because a connection removes only
itself. A take-over does not take the device offline: the device has a link at every moment.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from heapq import nlargest
from typing import Protocol, Self

import msgspec
import structlog

from broker.clock import Clock
from broker.devices.registry import Device
from broker.envelope import Action
from broker.facts import (
    ActionStored,
    ApplicationGrantsChanged,
    DeviceChanged,
    DeviceConnectedAgain,
    DeviceWentOffline,
    DeviceWentOnline,
    FactPhase,
    GrantsChanged,
    Router,
    SharesChanged,
    TokenRevoked,
    WantedChanged,
)
from broker.routing.claims import ConnectionClaims
from broker.trace.origin import address_key, current_origin
from storage.keys import DeviceKey
from storage.sql import StoreError

_log = structlog.get_logger(__name__)


class CloseReason(Enum):
    """Why the broker ends a connection that the peer wanted to keep."""

    REPLACED = "replaced by a newer connection"
    TOKEN_REVOKED = "token revoked or expired"  # noqa: S105 - a text for the peer
    DEVICE_DISABLED = "device disabled"
    DEVICE_DELETED = "device deleted"
    PERMISSION_REMOVED = "permission removed"
    SHUTDOWN = "server shuts down"
    NOT_STORED = "connection not stored"  # several nodes: the others would not know of it


@dataclass(eq=False, slots=True)
class DeviceLink:
    """One device on one connection: registered while its `with` block lasts. The connection bounds its own queue behind
    `deliver`."""

    _connections: "Connections"
    device: Device
    protocol: str
    token: bytes
    _deliver: Callable[[Action], bool] | None
    _close: Callable[[CloseReason], None]
    is_allowed: Callable[[], bool]
    is_exclusive: bool
    _tell_wanted: Callable[[bytes], object] | None = None
    #: Where the device is; empty where the peer may have written any address into its datagrams.
    address: str = field(init=False)
    since: int = 0
    dropped: int = 0
    is_elsewhere: bool = False  # the device has a newer connection to another node
    is_registration: bool = False

    def __post_init__(self) -> None:
        origin = current_origin()
        self.address = "" if origin.is_forgeable else origin.address

    def __enter__(self) -> Self:
        self._connections.enter(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._connections.leave(self)

    def offer(self, action: Action) -> bool:
        """Hand an Action to the connection. A slow device loses its own Actions and never slows the router."""
        try:
            taken = self._deliver is not None and self._deliver(action)
        except Exception:  # noqa: BLE001 - the boundary between the router and one connection
            _log.exception("link_failed", device=self.device.id, protocol=self.protocol)
            taken = False
        if not taken:
            self.dropped += 1
        return taken

    def tell_wanted(self, document: bytes) -> None:
        """Hand the wanted values of the device to the connection, if it takes them."""
        try:
            if self._tell_wanted is not None:
                self._tell_wanted(document)
        except Exception:  # noqa: BLE001 - as `offer`
            _log.exception("link_failed", device=self.device.id, protocol=self.protocol)

    @property
    def key(self) -> DeviceKey:
        return self.device.key

    @property
    def takes_actions(self) -> bool:
        return self._deliver is not None

    def replaced_elsewhere(self) -> None:
        self.is_elsewhere = True
        self._connections.replace(self)

    def not_claimed(self) -> None:
        self.close(CloseReason.NOT_STORED)

    def close(self, reason: CloseReason) -> None:
        try:
            self._close(reason)
        except Exception:  # noqa: BLE001 - a link that cannot be closed must not keep the others open
            _log.exception("link_failed", device=self.device.id, protocol=self.protocol)


class DeliveryQuota(Protocol):
    """Counts deliveries to devices, and may refuse them."""

    def admits(self, device: Device, action: Action) -> bool:
        """Whether this Action may be delivered now."""

    def delivered(self, device: Device, action: Action) -> None:
        """Count the delivery of an Action that `admits` allowed."""


class ConnectionStatistics(msgspec.Struct, frozen=True):
    links: int
    devices_online: int
    takeovers: int
    actions_delivered: int
    actions_dropped: int


class Connections:
    """The links of every connected device."""

    def __init__(self, router: Router, clock: Clock, quota: DeliveryQuota | None = None) -> None:
        """`quota` is asked about every delivery; without one, every delivery is allowed."""
        self._router = router
        self._clock = clock
        self._links: dict[DeviceKey, list[DeviceLink]] = {}
        self._exclusive: dict[DeviceKey, DeviceLink] = {}
        self._takeovers = self._delivered = self._dropped = 0
        self._quota = quota
        self._claims: ConnectionClaims | None = None
        router.subscribe(ActionStored, self._deliver, FactPhase.EFFECT)
        router.subscribe(WantedChanged, self._wanted_changed, FactPhase.EFFECT)
        router.subscribe(TokenRevoked, self._end_revoked, FactPhase.EFFECT)
        router.subscribe(DeviceChanged, self._end_disabled, FactPhase.EFFECT)
        router.subscribe(SharesChanged, self._shares_changed, FactPhase.EFFECT)
        router.subscribe(GrantsChanged, self._grants_changed, FactPhase.EFFECT)
        router.subscribe(ApplicationGrantsChanged, self._grants_changed, FactPhase.EFFECT)

    def connect(
        self,
        device: Device,
        *,
        protocol: str,
        token: bytes,
        exclusive: bool,
        deliver: Callable[[Action], bool] | None,
        close: Callable[[CloseReason], None],
        is_allowed: Callable[[], bool] = lambda: True,
        tell_wanted: Callable[[bytes], object] | None = None,
        is_registration: bool = False,
    ) -> DeviceLink:
        """An authenticated connection, which is registered for as long as the block lasts.

        Args:
            device: the device that the connection belongs to.
            protocol: `WEBSOCKET`, `MQTT`, `COAP` or `LWM2M`.
            token: SHA-256 of the connection's token; when the token is revoked, the link is closed.
            exclusive: the token is the device's own, so the one-connection rule applies.
            deliver: called on the loop with each Action; takes the Action or returns False, without waiting.
                None for a connection that takes no Actions.
            close: called on the loop when the broker ends the link; must return at once.
            tell_wanted: called on the loop with each change of the values that are wanted of the device (reference
                9.10), without waiting. None for a connection that takes none.
            is_registration: of LWM2M, of which a device has one on several nodes together.
            is_allowed: asked, without waiting, when shares or grants have changed; always true for a device token.
        """
        link = DeviceLink(self, device, protocol, token, deliver, close, is_allowed, exclusive, tell_wanted)
        link.is_registration = is_registration
        return link

    def enter(self, link: DeviceLink) -> None:
        """Register the link. An exclusive one replaces the one before."""
        link.since = self._clock.now_ms()
        if self._claims is not None:
            self._claims.begin(link, is_registration=link.is_registration)
        key = link.device.key
        incumbent = self._exclusive.get(key) if link.is_exclusive else None
        was_online = self.is_online(key)
        self._links.setdefault(key, []).append(link)
        if link.is_exclusive:
            self._exclusive[key] = link
        if incumbent is not None:
            self.replace(incumbent)
        connected = DeviceConnectedAgain if was_online else DeviceWentOnline
        self._router.publish(connected(key, link.protocol, link.since))

    async def entered(self, link: DeviceLink) -> None:
        """Several nodes: wait until the others know of the link, before its peer does. Raises StoreError: they do not,
        or the link has ended."""
        if self._claims is not None:
            await self._claims.begun(link)
            if link not in self._links.get(link.device.key, ()):
                raise StoreError("the connection has ended before it was stored")

    def when_entered(self, link: DeviceLink, call: Callable[[], None]) -> None:
        """As `entered`, for a protocol that has no task for each connection: call this then, at once where one node
        serves. If the others do not know of the link, it was closed."""
        if self._claims is None:
            call()
        else:
            self._claims.when_begun(link, call)

    def replace(self, link: DeviceLink) -> None:
        """The device has a newer connection."""
        self._takeovers += 1
        # The old connection may take long to close; from now on it gets no Actions and does not count.
        self.leave(link)
        link.close(CloseReason.REPLACED)

    def share(self, claims: ConnectionClaims) -> None:
        """Devices have one connection to several nodes together."""
        self._claims = claims

    def leave(self, link: DeviceLink) -> None:
        """The link has ended, or was replaced."""
        if self._claims is not None:
            self._claims.end(link)
        key = link.device.key
        if self._exclusive.get(key) is link:  # a newer connection may have replaced this one
            del self._exclusive[key]
        links = self._links.get(key, [])
        if link not in links:  # it was replaced and removed earlier
            return
        links.remove(link)
        self._dropped += link.dropped
        if not links:
            del self._links[key]
            self._router.publish(DeviceWentOffline(key, self._clock.now_ms(), is_elsewhere=link.is_elsewhere))
        elif links[-1].protocol != link.protocol:
            # The device's connection is now the latest of the remaining ones.
            self._router.publish(DeviceConnectedAgain(key, links[-1].protocol, self._clock.now_ms()))

    def is_online(self, device: DeviceKey) -> bool:
        return device in self._links

    def is_at(self, device: DeviceKey, address: str) -> bool:
        """Whether a connection of the device proves that it is at this address, or in the same /64 of IPv6."""
        key = address_key(address)
        return any(link.address and address_key(link.address) == key for link in self._links.get(device, ()))

    def _deliver(self, fact: ActionStored) -> None:
        quota, action = self._quota, fact.action
        for link in self._links.get(fact.destination, ()):
            if not link.takes_actions:
                continue
            if quota is not None and not quota.admits(link.device, action):
                link.dropped += 1
            elif link.offer(action):
                self._delivered += 1
                if quota is not None:
                    quota.delivered(link.device, action)

    def _wanted_changed(self, fact: WantedChanged) -> None:
        for link in self._links.get(fact.device, ()):
            link.tell_wanted(fact.document)

    def _end_revoked(self, fact: TokenRevoked) -> None:
        for link in self.links():
            if link.token == fact.hash:
                link.close(CloseReason.TOKEN_REVOKED)

    def _end_disabled(self, fact: DeviceChanged) -> None:
        for link in tuple(self._links.get(fact.device, ())):
            if not link.device.enabled:
                link.close(CloseReason.DEVICE_DISABLED)

    def _shares_changed(self, fact: SharesChanged) -> None:
        self._end_forbidden(self._links.get(fact.device, ()))

    def _grants_changed(self, _fact: GrantsChanged | ApplicationGrantsChanged) -> None:
        self._end_forbidden(self.links())

    def _end_forbidden(self, links: Iterable[DeviceLink]) -> None:
        for link in tuple(links):
            if not link.is_allowed():
                link.close(CloseReason.PERMISSION_REMOVED)

    def links(self) -> list[DeviceLink]:
        """Every one."""
        return [link for links in self._links.values() for link in links]

    def newest(self, most: int) -> tuple[list[DeviceLink], int]:
        """The links that began last, the newest first, and how many there are."""
        links = self.links()
        return nlargest(most, links, key=lambda link: link.since), len(links)

    def close_all(self) -> None:
        """The daemon stops: close every link, each with its protocol's own farewell."""
        for link in self.links():
            link.close(CloseReason.SHUTDOWN)

    def statistics(self) -> ConnectionStatistics:
        waiting = sum(link.dropped for link in self.links())
        return ConnectionStatistics(
            sum(map(len, self._links.values())),
            len(self._links),
            self._takeovers,
            self._delivered,
            self._dropped + waiting,
        )
