"""Facts, named in the past tense, and the router that delivers them to the capabilities that subscribed.

A capability calls those below it and reports to those above it by facts. A fact on the path of each message carries a
batch; a rare one carries one event. Handlers are synchronous: a handler that needs time puts the fact into a bounded
queue of its own and returns. A handler that raises is logged; the publisher and the other handlers go on.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from operator import itemgetter
from typing import Any, Self, TypeVar

import msgspec
import structlog

from broker.envelope import Action
from storage.alarms import AlarmRecord
from storage.keys import ApplicationKey, DeviceKey, DeviceTypeKey, Milliseconds, OrganizationKey, UserKey
from storage.mqtt_topics import TopicRuleRecord
from storage.records import GrantRecord, MessageRow

_F = TypeVar("_F", bound="Fact")
_log = structlog.get_logger(__name__)


class Fact(msgspec.Struct, frozen=True):
    """An event that has happened and cannot be refused any more."""


class MessagesStored(Fact, frozen=True):
    """Data messages are durable, in log order. `is_own` is False when another node has stored them."""

    rows: Sequence[MessageRow]
    is_own: bool = True


class ActionStored(Fact, frozen=True, kw_only=True):
    """An Action is durable. `destination` is the key of the device it goes to, `source` of the one it came from.

    `is_sent` is False for one that the external cloud of the destination reported: it is not sent there.
    """

    action: Action
    source: DeviceKey
    destination: DeviceKey
    is_sent: bool = True
    is_own: bool = True  # stored by this node


class DeviceWentOnline(Fact, frozen=True):
    """The device has its first persistent connection."""

    device: DeviceKey
    protocol: str
    at_ms: Milliseconds


class DeviceConnectedAgain(Fact, frozen=True):
    """A device that is online has another connection: a second one, one that replaced the first, or the one that is
    left of two."""

    device: DeviceKey
    protocol: str
    at_ms: Milliseconds


class DeviceWentOffline(Fact, frozen=True):
    """The device's last persistent connection to this node is gone. `is_elsewhere`: it has a newer one to another."""

    device: DeviceKey
    at_ms: Milliseconds
    is_elsewhere: bool = False


class DeviceChanged(Fact, frozen=True):
    """The device's record, its enabled flag or its token changed, or the device was deleted."""

    device: DeviceKey


class DeviceFact(Fact, frozen=True):
    """A device was created, changed or deleted in the inventory (reference 20).

    The fact carries everything that decides which callers may be told of it, because after `DeviceDeleted` the store no
    longer shows the device. `application_id` is the application of the token that caused the change; None: an operator
    caused it.
    """

    device: DeviceKey
    device_id: str
    device_type: DeviceTypeKey
    device_type_id: str
    type_organization: OrganizationKey
    type_protected: bool
    owner: UserKey
    owner_id: str
    application_id: str | None
    at_ms: Milliseconds


class DeviceCreated(DeviceFact, frozen=True):
    """device.new"""


class DeviceUpdated(DeviceFact, frozen=True):
    """device.updated: the device's name, Manifest version or Manifest version policy changed."""


class DeviceEnabled(DeviceFact, frozen=True):
    """device.connected: the device may send and receive again."""


class DeviceDisabled(DeviceFact, frozen=True):
    """device.disconnected: the device may neither send nor receive."""


class DeviceDeleted(DeviceFact, frozen=True):
    """device.deleted: rules, scenes, subscriptions and trials must stop referring to the device."""


class DeviceHandedOver(DeviceFact, frozen=True):
    """device.deleted, for the former owner: the device has another one. `owner` is the former one."""


class DeviceTakenOver(DeviceFact, frozen=True):
    """device.new, for the user whose the device is from now on."""


class DeviceActionFact(DeviceFact, frozen=True):
    """An Action for a third party has ended. `mid` is the Action's."""

    mid: str = ""


class DeviceActionDelivered(DeviceActionFact, frozen=True):
    """device.action.delivered: the third party took an Action that it had not taken at once."""


class DeviceActionFailed(DeviceActionFact, frozen=True):
    """device.action.failed: the third party did not take an Action, which is not tried again."""


class DeviceWanted(DeviceFact, frozen=True):
    """device.wanted.changed, .reached, .expired and .refused: of the values that are wanted of a device, those of these
    fields. `change` is the last word of the event's name, `fields` their dotted paths with a comma between each two."""

    change: str = ""
    fields: str = ""


class WantedChanged(Fact, frozen=True):
    """The values that are wanted of a device are others now. `document` is what the device gets."""

    device: DeviceKey
    document: bytes


class AvailabilityChanged(Fact, frozen=True):
    """device.status.online and device.status.offline, whatever the cause: connections or a status that was set.

    The publisher holds the `Device`, so that handlers get it from `Devices.get_nowait`.
    """

    device: DeviceKey
    availability: str  # online | offline | unknown
    at_ms: Milliseconds


class ProviderAuthRemoved(Fact, frozen=True):
    """The device's authorization at its third party was revoked; subscriptions end (reference 11.2)."""

    device: DeviceKey


class SharesChanged(Fact, frozen=True):
    """A user accepted or left a share of this device, or was removed. The shared `Device` is up to date already."""

    device: DeviceKey


class GrantsChanged(Fact, frozen=True):
    """A user's grants for an application changed; `grants` are all that the user grants this application now.

    `revoked`: where there are none, the user revoked the application. Otherwise a new password ended them.
    """

    user: UserKey
    application: ApplicationKey
    grants: tuple[GrantRecord, ...]
    revoked: bool = True


class SessionsEnded(Fact, frozen=True):
    """At least one browser session of this user ended."""

    user: UserKey


class ApplicationGrantsChanged(Fact, frozen=True):
    """Grants of many users for one application changed at once; `grants` are all that each grants it now."""

    application: ApplicationKey
    grants: Mapping[UserKey, tuple[GrantRecord, ...]]


class TopicRulesChanged(Fact, frozen=True):
    """The access rules of open topics have changed; `rules` are all present ones."""

    rules: tuple[TopicRuleRecord, ...]


class PlanApproved(Fact, frozen=True):
    """A monetization plan of this device type is in force from now on."""

    device_type: DeviceTypeKey


class ManagementConfigured(Fact, frozen=True):
    """The device management of this type was configured: `Registrations.observation_of` may answer differently."""

    device_type: DeviceTypeKey


class DeviceTypeChanged(Fact, frozen=True):
    """The type has a new approved version of its Manifest, which the shared `DeviceType` has already."""

    device_type: DeviceTypeKey


class UserProfileUpdated(Fact, frozen=True):
    """The user's profile changed."""

    user: UserKey
    user_id: str
    at_ms: Milliseconds


class TokenRevoked(Fact, frozen=True):
    """The token was revoked or expired: connections that authenticated with it must end. `hash` is its SHA-256."""

    hash: bytes


class RuleReported(Fact, frozen=True):
    """rule.failed, rule.stopped and rule.invalidated: something that the owner of a rule must know (reference 12.4).

    `kind` is the last word of the event's name, `field` the place in the rule, as in findings.
    """

    kind: str
    rule_id: str
    owner: UserKey
    owner_id: str
    application: ApplicationKey
    application_id: str
    field: str
    text: str
    at_ms: Milliseconds


class AlarmReported(Fact, frozen=True):
    """alarm.raised, alarm.acknowledged and alarm.cleared (reference 12.12).

    `kind` is the last word of the event's name, `device_id` empty for an alarm without a device.
    """

    kind: str
    alarm_id: str
    rule_id: str
    owner: UserKey
    owner_id: str
    application: ApplicationKey
    application_id: str
    device_id: str
    severity: str
    text: str
    at_ms: Milliseconds

    @classmethod
    def of(cls, kind: str, alarm: AlarmRecord, at_ms: Milliseconds) -> Self:
        return cls(
            kind,
            alarm.id,
            alarm.rule_id,
            alarm.owner,
            alarm.owner_id,
            alarm.application,
            alarm.application_id,
            alarm.device_id,
            alarm.severity,
            alarm.text,
            at_ms,
        )


class SubscriptionReported(Fact, frozen=True):
    """subscription.suspended and subscription.removed: nothing is delivered any more (reference 11.2).

    `kind` is the last word of the event's name, `backlog` how many notifications and messages waited in vain.
    """

    kind: str
    subscription_id: str
    user: UserKey
    user_id: str
    application: ApplicationKey
    application_id: str
    text: str
    backlog: int
    at_ms: Milliseconds


class WorkProgressed(Fact, frozen=True):
    """Long work went on, was changed or ended (reference 27.22). Equal facts say the same, however often."""


class UploadProgressed(WorkProgressed, frozen=True):
    """The upload of an approved list."""

    upload_id: str
    device_type: DeviceTypeKey


class TaskProgressed(WorkProgressed, frozen=True):
    """A task of device management, as a whole or on one of its devices. `task` is its key."""

    task: int


class DeliveriesProgressed(WorkProgressed, frozen=True):
    """Notifications of a subscription were answered, given up, or are delivered again. `subscription` is its key."""

    subscription: int


class BackupProgressed(WorkProgressed, frozen=True):
    """The latest backup that an operator began."""


class FactPhase(IntEnum):
    """Phase of a handler. All handlers of one phase are called with a fact before any handler of the next."""

    #: Bring up to date what the broker knows: caches, permissions, registries, quotas, presence.
    STATE = 1
    #: Act on what the broker knows: deliver, close connections, feed subscribers, wake workers.
    EFFECT = 2


class Router:
    """Calls the handlers of a fact's type, phase by phase; within a phase in the order of the subscriptions."""

    def __init__(self) -> None:
        self._subscriptions: dict[type[Fact], list[tuple[FactPhase, Callable[[Any], None]]]] = {}
        self._handlers: dict[type[Fact], tuple[Callable[[Any], None], ...]] = {}

    def subscribe(self, kind: type[_F], handler: Callable[[_F], None], phase: FactPhase = FactPhase.EFFECT) -> None:
        subscriptions = self._subscriptions.setdefault(kind, [])
        subscriptions.append((phase, handler))
        subscriptions.sort(key=itemgetter(0))
        self._handlers[kind] = tuple(known for _, known in subscriptions)

    def handlers(self, kind: type[Fact]) -> tuple[Callable[[Any], None], ...]:
        """The handlers of a fact's type, in the order in which they are called."""
        return self._handlers.get(kind, ())

    def end(self, *kinds: type[Fact]) -> None:
        """Remove all handlers of these types."""
        for kind in kinds:
            self._handlers[kind] = ()

    def publish_all(self, facts: Iterable[Fact] | None) -> None:
        for fact in facts or ():
            self.publish(fact)

    def publish(self, fact: Fact) -> None:
        """Return when every handler of this type of fact has returned."""
        for handler in self._handlers.get(type(fact), ()):
            try:
                handler(fact)
            except Exception:  # noqa: BLE001 - a failing handler must harm neither the publisher nor other handlers
                _log.exception("fact_handler_failed", fact=type(fact).__name__, handler=repr(handler))
