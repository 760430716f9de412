"""The event feed: what happens to devices and profiles, told live to whom it concerns (reference 20).

Events are neither stored nor repeated. Their order is the order of the facts they are made of. Each is encoded once for
each wire form.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import structlog

from broker.accounts.permissions import Guarded
from broker.devices.registry import Device, Devices
from broker.facts import (
    AvailabilityChanged,
    DeviceCreated,
    DeviceDeleted,
    DeviceDisabled,
    DeviceEnabled,
    DeviceFact,
    DeviceUpdated,
    Router,
    TokenRevoked,
    UserProfileUpdated,
)
from broker.routing.connections import CloseReason

_NAMES: Final[Mapping[type[DeviceFact], str]] = {
    DeviceCreated: "device.new",
    DeviceUpdated: "device.updated",
    DeviceEnabled: "device.connected",
    DeviceDisabled: "device.disconnected",
    DeviceDeleted: "device.deleted",
}

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Subject:
    """The device of an event, as far as permissions ask for it; it may be gone by now."""

    key: int
    id: str
    owner: int
    type_key: int
    type_organization: int
    type_protected: bool
    shared_with: frozenset[int] = frozenset()  # who hears whether it is online


@dataclass(frozen=True, slots=True)
class Event:
    """One event. `user` is the key of the device's owner, or of the user whom it is about; then `device` is None."""

    name: str
    ts: int
    data: Mapping[str, str]
    user: int
    device: Guarded | None

    @property
    def is_status(self) -> bool:
        return self.name.startswith("device.status.")


class EventNames:
    """The names and patterns that were asked for: `*` stands for any run of characters, dots included."""

    def __init__(self, patterns: Sequence[str]) -> None:
        wanted = ("[^\n]*".join(map(re.escape, re.split(r"\*+", pattern))) for pattern in patterns)
        self._matches = re.compile("|".join(wanted) if patterns else ".*").fullmatch

    def __contains__(self, name: str) -> bool:
        return self._matches(name) is not None


@dataclass(frozen=True, eq=False)
class EventSubscriber:
    """Someone who listens.

    `concerns` decides about an event without waiting; `offer` takes an encoded frame and returns at once. Subscribers
    that name the same `encode` share the frame. When `token`, the SHA-256 of what the subscriber came with, is revoked,
    `close` is called.
    """

    concerns: Callable[[Event], bool]
    offer: Callable[[bytes], object]
    encode: Callable[[Event], bytes]
    token: bytes
    close: Callable[[CloseReason], object]


@dataclass(frozen=True, slots=True)
class EventStatistics:
    subscribers: int
    events: int


class Events:
    """Makes events of facts and hands them to those they concern."""

    def __init__(self, router: Router, devices: Devices) -> None:
        self._devices = devices
        self._subscribers: list[EventSubscriber] = []
        self._events = 0
        for kind in _NAMES:
            router.subscribe(kind, self._device_fact)
        router.subscribe(AvailabilityChanged, self._availability_changed)
        router.subscribe(UserProfileUpdated, self._profile_updated)
        router.subscribe(TokenRevoked, self._token_revoked)

    @contextmanager
    def subscribe(self, subscriber: EventSubscriber) -> Iterator[None]:
        self._subscribers.append(subscriber)
        try:
            yield
        finally:
            self._subscribers.remove(subscriber)

    def _device_fact(self, fact: DeviceFact) -> None:
        data = {"uid": fact.owner_id, "did": fact.device_id, "dtid": fact.device_type_id}
        if fact.application_id is not None:
            data["aid"] = fact.application_id
        subject = Subject(
            fact.device, fact.device_id, fact.owner, fact.device_type, fact.type_organization, fact.type_protected
        )
        self._tell(Event(_NAMES[type(fact)], fact.at_ms, data, fact.owner, subject))

    def _availability_changed(self, fact: AvailabilityChanged) -> None:
        device = self._devices.get_nowait(fact.device)
        if device is None or fact.availability not in {"online", "offline"}:
            return
        data = {"uid": device.owner_id, "did": device.id}
        self._tell(Event(f"device.status.{fact.availability}", fact.at_ms, data, device.owner, _subject(device)))

    def _profile_updated(self, fact: UserProfileUpdated) -> None:
        self._tell(Event("user.profile.updated", fact.at_ms, {"uid": fact.user_id}, fact.user, None))

    def _tell(self, event: Event) -> None:
        self._events += 1
        frames: dict[Callable[[Event], bytes], bytes] = {}
        for subscriber in tuple(self._subscribers):  # one that falls behind may leave while it is told
            try:
                if subscriber.concerns(event):
                    if (frame := frames.get(subscriber.encode)) is None:
                        frame = frames[subscriber.encode] = subscriber.encode(event)
                    subscriber.offer(frame)
            except Exception:  # noqa: BLE001 - one who cannot take it must not keep it from the others
                _log.exception("event_subscriber_failed", subscriber=repr(subscriber))

    def _token_revoked(self, fact: TokenRevoked) -> None:
        for subscriber in tuple(self._subscribers):
            if subscriber.token == fact.hash:
                subscriber.close(CloseReason.TOKEN_REVOKED)

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
