"""The event feed: changes of devices and profiles, sent live to the subscribers they concern (reference 20).

Events are neither stored nor repeated. Their order is the order of the facts. Each event is encoded once for each wire
form.
"""

import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

import msgspec
import structlog
import trio

from broker.accounts.permissions import Guarded
from broker.accounts.tokens import CONSOLE_ID
from broker.cluster.kinds import AVAILABILITY, Availability
from broker.cluster.news import News
from broker.devices.registry import Device, Devices
from broker.errors import DeviceNotFound
from broker.facts import (
    AlarmReported,
    AvailabilityChanged,
    DeviceActionDelivered,
    DeviceActionFact,
    DeviceActionFailed,
    DeviceCreated,
    DeviceDeleted,
    DeviceDisabled,
    DeviceEnabled,
    DeviceFact,
    DeviceHandedOver,
    DeviceTakenOver,
    DeviceUpdated,
    DeviceWanted,
    FactPhase,
    Router,
    RuleReported,
    SubscriptionReported,
    UserProfileUpdated,
)
from broker.loops import Loop, Wakeup
from broker.routing.connections import CloseReason
from broker.routing.named_devices import NO_DEVICES, NamedDevices, close_with_facts
from storage.keys import ApplicationKey, DeviceKey, DeviceTypeKey, Milliseconds, OrganizationKey, UserKey

_NAMES: Final[Mapping[type[DeviceFact], str]] = {
    DeviceCreated: "device.new",
    DeviceUpdated: "device.updated",
    DeviceEnabled: "device.connected",
    DeviceDisabled: "device.disconnected",
    DeviceDeleted: "device.deleted",
    DeviceHandedOver: "device.deleted",
    DeviceTakenOver: "device.new",
    DeviceActionDelivered: "device.action.delivered",
    DeviceActionFailed: "device.action.failed",
}

#: Changes that wait until their devices are read.
_WAITING_MOST: Final = 10_000
_log = structlog.get_logger(__name__)


class Subject(msgspec.Struct, frozen=True):
    """The device of an event, with what permissions need; the device may be deleted by now."""

    key: DeviceKey
    id: str
    owner: UserKey
    type_key: DeviceTypeKey
    type_organization: OrganizationKey
    type_protected: bool
    shared_with: frozenset[UserKey] = frozenset()  # users who are told whether the device is online


class FeedEvent(msgspec.Struct, frozen=True):
    """One event. `user` is the key of the device's owner; of an event about a user, that user, without a `device`."""

    name: str
    ts: Milliseconds
    data: Mapping[str, str | int]
    user: UserKey
    device: Guarded | None
    application: ApplicationKey | None = None  # of a rule or subscription: the only application that is told

    @property
    def is_status(self) -> bool:
        return self.name.startswith("device.status.")


class EventNames:
    """Event names and patterns of a subscription: `*` stands for any characters, dots included."""

    def __init__(self, patterns: Sequence[str]) -> None:
        wanted = ("[^\n]*".join(map(re.escape, re.split(r"\*+", pattern))) for pattern in patterns)
        self._matches = re.compile("|".join(wanted) if patterns else ".*").fullmatch

    def __contains__(self, name: str) -> bool:
        return self._matches(name) is not None


@dataclass(frozen=True, eq=False)
class EventSubscriber:
    """A subscriber of the event feed.

    `concerns` decides about an event without waiting; `offer` takes an encoded frame and returns at once. Subscribers
    with the same `encode` share the frame. `named` are the devices that it names. `close` is called when one of them is
    deleted or no longer the subscriber's to read, and when the token is revoked; `token` is its SHA-256.
    """

    concerns: Callable[[FeedEvent], bool]
    offer: Callable[[bytes], object]
    encode: Callable[[FeedEvent], bytes]
    token: bytes
    close: Callable[[CloseReason], object]
    named: NamedDevices = NO_DEVICES


class EventStatistics(msgspec.Struct, frozen=True):
    subscribers: int
    events: int


class Events:
    """Turns facts into events and hands each event to the subscribers it concerns."""

    def __init__(self, router: Router, devices: Devices) -> None:
        self._devices = devices
        self._subscribers: list[EventSubscriber] = []
        self._events = 0
        self._waiting: deque[Availability] = deque(maxlen=_WAITING_MOST)
        self._wakeup = Wakeup()
        self._is_shared = False
        router.subscribe(DeviceWanted, self._device_fact, FactPhase.EFFECT)
        for kind in _NAMES:
            router.subscribe(kind, self._device_fact, FactPhase.EFFECT)
        router.subscribe(AvailabilityChanged, self._availability_changed, FactPhase.EFFECT)
        router.subscribe(UserProfileUpdated, self._profile_updated, FactPhase.EFFECT)
        router.subscribe(RuleReported, self._rule_reported, FactPhase.EFFECT)
        router.subscribe(AlarmReported, self._alarm_reported, FactPhase.EFFECT)
        router.subscribe(SubscriptionReported, self._subscription_reported, FactPhase.EFFECT)
        close_with_facts(router, self._subscribers)  # behind the events: the last one goes out before

    @contextmanager
    def subscribe(self, subscriber: EventSubscriber) -> Iterator[None]:
        self._subscribers.append(subscriber)
        try:
            yield
        finally:
            self._subscribers.remove(subscriber)

    def _device_fact(self, fact: DeviceFact) -> None:
        data = {"uid": fact.owner_id, "did": fact.device_id, "dtid": fact.device_type_id}
        if fact.application_id not in {None, CONSOLE_ID}:
            data["aid"] = fact.application_id
        if isinstance(fact, DeviceActionFact):
            data["mid"] = fact.mid
        name = _NAMES.get(type(fact), "")
        if isinstance(fact, DeviceWanted):
            name, data["fields"] = f"device.wanted.{fact.change}", fact.fields
        subject = Subject(
            fact.device, fact.device_id, fact.owner, fact.device_type, fact.type_organization, fact.type_protected
        )
        self._tell(FeedEvent(name, fact.at_ms, data, fact.owner, subject))

    def _availability_changed(self, fact: AvailabilityChanged) -> None:
        device = None if self._is_shared else self._devices.get_nowait(fact.device)
        if device is not None:
            self._tell_availability(device, fact)

    def share(self, news: News) -> None:
        """Devices connect to other nodes than this one, too: whether one comes or goes for all of them is known in the
        commit of its connection, and not when it connects."""
        self._is_shared = True
        news.listen(AVAILABILITY, self._changed_somewhere)

    def _changed_somewhere(self, change: Availability, _content: None) -> None:
        device = None if self._waiting else self._devices.get_nowait(change.device)
        if device is not None:
            self._tell_availability(device, change)
        elif self._subscribers:
            self._waiting.append(change)
            self._wakeup.set()

    async def tell_of_others_forever(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """The devices of other nodes are read first."""
        await Loop(self._tell_of_others, wakeup=self._wakeup, failure="events_not_told", retry_seconds=1).run(
            task_status=task_status
        )

    async def _tell_of_others(self) -> None:
        while self._waiting:
            change = self._waiting[0]
            with suppress(DeviceNotFound):
                self._tell_availability(await self._devices.get(change.device), change)
            if self._waiting and self._waiting[0] is change:  # else others have pushed it out
                self._waiting.popleft()

    def _tell_availability(self, device: Device, fact: AvailabilityChanged | Availability) -> None:
        if fact.availability not in {"online", "offline"}:
            return
        if not self._subscribers:  # each connection comes by here
            self._events += 1
            return
        data = {"uid": device.owner_id, "did": device.id}
        self._tell(FeedEvent(f"device.status.{fact.availability}", fact.at_ms, data, device.owner, _subject(device)))

    def _profile_updated(self, fact: UserProfileUpdated) -> None:
        self._tell(FeedEvent("user.profile.updated", fact.at_ms, {"uid": fact.user_id}, fact.user, None))

    def _rule_reported(self, fact: RuleReported) -> None:
        data = {"uid": fact.owner_id, "aid": fact.application_id, "rid": fact.rule_id}
        data |= {"field": fact.field, "message": fact.text}
        event = FeedEvent(f"rule.{fact.kind}", fact.at_ms, data, fact.owner, None, fact.application)
        self._tell(event)

    def _alarm_reported(self, fact: AlarmReported) -> None:
        data = {"uid": fact.owner_id, "aid": fact.application_id, "alarmId": fact.alarm_id, "rid": fact.rule_id}
        data |= {"did": fact.device_id} if fact.device_id else {}
        data |= {"severity": fact.severity}
        if fact.kind == "raised":  # a text has values, and later the application may not read the devices any more
            data["message"] = fact.text
        self._tell(FeedEvent(f"alarm.{fact.kind}", fact.at_ms, data, fact.owner, None, fact.application))

    def _subscription_reported(self, fact: SubscriptionReported) -> None:
        data: dict[str, str | int] = {"uid": fact.user_id, "aid": fact.application_id}
        data |= {"subscriptionId": fact.subscription_id, "message": fact.text, "backlog": fact.backlog}
        self._tell(FeedEvent(f"subscription.{fact.kind}", fact.at_ms, data, fact.user, None, fact.application))

    def _tell(self, event: FeedEvent) -> None:
        self._events += 1
        frames: dict[Callable[[FeedEvent], bytes], bytes] = {}
        for subscriber in tuple(self._subscribers):  # a slow subscriber may be removed during the call
            try:
                if subscriber.concerns(event):
                    if (frame := frames.get(subscriber.encode)) is None:
                        frame = frames[subscriber.encode] = subscriber.encode(event)
                    subscriber.offer(frame)
            except Exception:  # noqa: BLE001 - a failing subscriber must not harm the others
                _log.exception("event_subscriber_failed", subscriber=repr(subscriber))

    def statistics(self) -> EventStatistics:
        return EventStatistics(len(self._subscribers), self._events)


def _subject(device: Device) -> Subject:
    return Subject(
        device.key,
        device.id,
        device.owner,
        device.type_key,
        device.type_organization,
        device.type_protected,
        device.shared_with,
    )
