"""What happened, in the past tense, and the router that tells those who asked.

Calls go down, facts go up. Facts are batches where they are hot, single where they are rare. Handlers are synchronous:
one that needs time puts the fact into a bounded queue of its own and returns. A handler that raises is logged and does
not harm the sender or the other handlers.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import structlog

from broker.envelope import Action
from storage.records import GrantRecord, MessageRow

F = TypeVar("F", bound="Fact")
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Fact:
    """Something that happened and cannot be refused any more."""


@dataclass(frozen=True, slots=True)
class MessagesStored(Fact):
    """Data messages are durable, in log order."""

    rows: Sequence[MessageRow]


@dataclass(frozen=True, slots=True)
class ActionStored(Fact):
    """An Action is durable. `destination` is the key of the device it goes to, `source` of the one it came from."""

    action: Action
    source: int
    destination: int


@dataclass(frozen=True, slots=True)
class DeviceWentOnline(Fact):
    """The device has its first persistent connection."""

    device: int
    protocol: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class DeviceConnectedAgain(Fact):
    """A device that is online has another connection: a second one, or one that took over."""

    device: int
    protocol: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class DeviceWentOffline(Fact):
    """The device's last persistent connection is gone."""

    device: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class DeviceChanged(Fact):
    """The device's record, its enabled flag or its token changed."""

    device: int


@dataclass(frozen=True, slots=True)
class DeviceFact(Fact):
    """Something happened to a device's place in the inventory (reference 20).

    It carries all that decides who may hear of it, because after `DeviceDeleted` nobody can look it up.
    `application_id` is the application of the token that caused it; None for operators.
    """

    device: int
    device_id: str
    device_type: int
    device_type_id: str
    type_organization: int
    type_protected: bool
    owner: int
    owner_id: str
    application_id: str | None
    at_ms: int


@dataclass(frozen=True, slots=True)
class DeviceCreated(DeviceFact):
    """device.new"""


@dataclass(frozen=True, slots=True)
class DeviceUpdated(DeviceFact):
    """device.updated: its name, its Manifest version or its policy changed."""


@dataclass(frozen=True, slots=True)
class DeviceEnabled(DeviceFact):
    """device.connected: it may send and receive again."""


@dataclass(frozen=True, slots=True)
class DeviceDisabled(DeviceFact):
    """device.disconnected: it may neither send nor receive."""


@dataclass(frozen=True, slots=True)
class DeviceDeleted(DeviceFact):
    """device.deleted: what depends on it (rules, scenes, subscriptions, trials) has lost it."""


@dataclass(frozen=True, slots=True)
class AvailabilityChanged(Fact):
    """device.status.online and device.status.offline, whatever the cause: connections or a status that was set.

    Whoever causes it holds the `Device`, so that `Devices.get_nowait` gives it.
    """

    device: int
    availability: str  # online | offline | unknown
    at_ms: int


@dataclass(frozen=True, slots=True)
class ProviderAuthRemoved(Fact):
    """The device's authorization at its third party was taken back; subscriptions end (reference 11.2)."""

    device: int


@dataclass(frozen=True, slots=True)
class SharesChanged(Fact):
    """Who shares this device changed: somebody accepted, left or was removed. The shared `Device` knows already."""

    device: int


@dataclass(frozen=True, slots=True)
class GrantsChanged(Fact):
    """A user allows an application more or less than before: now these grants, of all that the two have."""

    user: int
    application: int
    grants: tuple[GrantRecord, ...]


@dataclass(frozen=True, slots=True)
class PlanApproved(Fact):
    """A monetization plan of this device type counts from now on."""

    device_type: int


@dataclass(frozen=True, slots=True)
class UserProfileUpdated(Fact):
    """The user's profile changed."""

    user: int
    user_id: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class TokenRevoked(Fact):
    """The token was revoked, or expired: connections that came with it must end. `hash` is its SHA-256."""

    hash: bytes


class Router:
    """Hands each fact to those who asked for its type, in the order in which they asked."""

    def __init__(self) -> None:
        self._handlers: dict[type[Fact], list[Callable[[Any], None]]] = {}

    def subscribe(self, kind: type[F], handler: Callable[[F], None]) -> None:
        self._handlers.setdefault(kind, []).append(handler)

    def publish_all(self, facts: Iterable[Fact] | None) -> None:
        for fact in facts or ():
            self.publish(fact)

    def publish(self, fact: Fact) -> None:
        for handler in self._handlers.get(type(fact), ()):
            try:
                handler(fact)
            except Exception:  # noqa: BLE001 - the one boundary between a sender and its listeners
                _log.exception("fact_handler_failed", fact=type(fact).__name__, handler=repr(handler))
