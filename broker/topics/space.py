"""The open topic space: subscriptions, retained messages, and deliveries (reference 16.6).

Its messages are no device data: they are in no history. Messages that wait for a device are in its session, and
retained ones in the store; both are written with the commit that acknowledges the message.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Final, Protocol

import msgspec

from broker.clock import Clock
from broker.device_sessions.sessions import WRITE_BYTES, DeviceSessions
from broker.devices.registry import Device
from broker.errors import DomainError
from broker.limits.overhead import Overhead, Pace
from broker.topics.tree import SHARED, SharedSubscription, TopicTree, is_filter, pattern_of, split_shared
from config.limits import (
    MQTT_ARRIVING_BYTES,
    MQTT_QUEUED_BYTES,
    MQTT_RETAINED_BYTES,
    MQTT_RETAINED_BYTES_OF_USER,
    MQTT_RETAINED_MAX,
    MQTT_RETAINED_OF_USER,
    MQTT_SUBSCRIBED_BYTES,
    MQTT_SUBSCRIPTIONS_MAX,
    MQTT_WAITING_MESSAGES,
)
from storage.database import Database
from storage.keys import DeviceKey, Milliseconds, UserKey
from storage.mqtt_sessions import TopicSubscriptionRecord
from storage.mqtt_topics import RetainedRecord
from storage.transaction import Transaction

#: Subscriptions that are looked at in the time that one delivery takes.
_LOOKS_OF_A_DELIVERY: Final = 50
#: Cost of a delivery that is written, and whose end is written, relative to one that is only sent.
_WRITTEN_DELIVERY: Final = 3
#: With more deliveries of one message, each counts as a frame of overhead of the device that has published it.
_FAN_OUT: Final = 16
#: Cost of retaining a message, in frames of overhead: a write of its own, and more of them for a large one.
_RETAINED_FRAMES: Final = 4
_RETAINED_BYTES_OF_A_FRAME: Final = 4_096
#: Where the service's own topics are. No message of the open topic space has such a topic.
SERVICE: Final = (b"/v1.1/", b"v1.1/")


_MIB: Final = 1024 * 1024


class TooManyRetained(DomainError):
    status = 429
    template = (
        f"No more retained messages are taken: there are {MQTT_RETAINED_MAX}, or {MQTT_RETAINED_BYTES // _MIB} MiB"
    )


class TooManyRetainedOfUser(TooManyRetained):
    template = (
        "No more retained messages of your devices are taken:"
        f" there are {MQTT_RETAINED_OF_USER}, or {MQTT_RETAINED_BYTES_OF_USER // _MIB} MiB"
    )


class TooManySubscriptions(DomainError):
    status = 429
    template = f"A device may subscribe to {MQTT_SUBSCRIPTIONS_MAX} topic filters"


class TooLongSubscriptions(TooManySubscriptions):
    template = f"The topic filters of your devices may take {MQTT_SUBSCRIBED_BYTES // _MIB} MiB"


class TopicMessage(msgspec.Struct, frozen=True):
    """A message. `properties` are the forwarded ones, encoded; `expires_on` in ms, None for never."""

    topic: bytes
    payload: bytes
    qos: int
    retain: bool
    properties: bytes
    expires_on: Milliseconds | None


#: Hears of each message that a device publishes, with the device, its owner, and the allowance to which work beyond the
#: usual is charged; True: nobody else is to get it. Raises DomainError for one that is refused.
Hearer = Callable[[TopicMessage, DeviceKey, UserKey, Pace], bool]


class Preparer(Protocol):
    """Sees, before a message is published, to what a hearer needs for it and has not: something in memory, or room."""

    def is_ready(self, topic: bytes, payload: bytes, source: DeviceKey, owner: UserKey) -> bool:
        """Whether nothing is missing for a message of this device of this owner."""

    async def make_ready(self, topic: bytes, payload: bytes, source: DeviceKey, owner: UserKey) -> bool:
        """See to what is missing. False: there is no such thing, and the message may be published without it.

        Raises StoreError, StorageUnavailable: it is not known, so the message must not be acknowledged.
        """


class TopicStatistics(msgspec.Struct, frozen=True):
    subscriptions: int
    retained: int
    retained_bytes: int
    messages: int
    deliveries: int


#: An item for each retained message that was compared with the filter of a subscription: the message if it is to be
#: sent, else None. There may be many, so a search lets others run in between.
Search = Iterator[RetainedRecord | None]


class Arriving:
    """The memory for packets over the usual size that have begun to come, which all devices of a user share."""

    __slots__ = ("_held", "_user")

    def __init__(self, held: dict[UserKey, int], user: UserKey) -> None:
        self._held = held
        self._user = user

    def take(self, size: int) -> bool:
        """Hold `size` bytes; False, and nothing held, if there is no room. One packet always has room."""
        held = self._held.get(self._user, 0)
        if held and held + size > MQTT_ARRIVING_BYTES:
            return False
        self._held[self._user] = held + size
        return True

    def give_back(self, size: int) -> None:
        self._held[self._user] -= size
        if not self._held[self._user]:
            del self._held[self._user]


class QueuedBytes:
    """The memory for deliveries that wait until a user's devices read them. All devices of the user share it."""

    __slots__ = ("_held", "_user")

    def __init__(self, held: dict[UserKey, int], user: UserKey) -> None:
        self._held = held
        self._user = user

    @property
    def is_full(self) -> bool:
        return self._held.get(self._user, 0) > MQTT_QUEUED_BYTES

    def add(self, size: int) -> None:
        """Add to the number of waiting bytes; a negative `size` takes away."""
        self._held[self._user] = held = self._held.get(self._user, 0) + size
        if not held:
            del self._held[self._user]


class TopicSpace:
    def __init__(self, database: Database, clock: Clock, sessions: DeviceSessions) -> None:
        self._database = database
        self._clock = clock
        self._sessions = sessions
        self._tree = TopicTree()
        self._retained: dict[bytes, RetainedRecord] = {}
        self._retained_bytes = 0
        self._all_retained: tuple[RetainedRecord, ...] | None = ()  # None when it is to be made again
        self._first_expiry = math.inf  # of retained messages, or earlier
        self._retained_of: dict[UserKey, tuple[int, int]] = {}  # how many each user has, and their bytes
        self._subscriptions: dict[DeviceKey, dict[bytes, TopicSubscriptionRecord]] = {}
        self._owners: dict[DeviceKey, UserKey] = {}  # of devices with subscriptions
        self._subscribed: dict[UserKey, int] = {}  # the bytes of each user's subscriptions
        self._arriving: dict[UserKey, int] = {}
        self._queued: dict[UserKey, int] = {}
        self._messages = self._deliveries = 0
        self._paces: dict[DeviceKey, Pace] = {}
        self._hearers: list[Hearer] = []
        #: Asked before each message of a device is published (`prepare_with`).
        self.preparers: tuple[Preparer, ...] = ()
        sessions.on_end(self.forget)

    async def resume(self) -> None:
        """After the start: retained messages, and the subscriptions of sessions that are away."""
        retained = await self._database.read(lambda tx: tx.mqtt_topics.retained())
        for message in retained:
            self._keep(message)
        owners = await self._database.read(lambda tx: tx.mqtt_sessions.owners())
        for session in self._sessions.away():
            for filter_, subscription in session.subscriptions.items():
                if not filter_.startswith(SERVICE) and (owner := owners.get(session.device)) is not None:
                    self._add(session.device, owner, filter_, subscription)

    def retained_of(self, owner: UserKey) -> list[tuple[bytes, bytes]]:
        """Topics and payloads of what devices of a user have retained."""
        now_ms, all_ = self._clock.now_ms(), self._retained.values()
        return [
            (one.topic, one.payload)
            for one in all_
            if one.owner == owner and one.audience is None and not _has_expired(one, now_ms)
        ]

    def hear(self, hearer: Hearer) -> None:
        """Call `hearer` with the messages of devices, before anybody gets them."""
        self._hearers.append(hearer)

    def prepare_with(self, preparer: Preparer, *, is_on: bool = True) -> None:
        """Ask, or ask no longer: without anybody to ask a message costs nothing more."""
        others = tuple(one for one in self.preparers if one is not preparer)
        self.preparers = (*others, preparer) if is_on else others

    def unready(self, topic: bytes, payload: bytes, source: DeviceKey, owner: UserKey) -> Preparer | None:
        """The first preparer that is not ready for a message: `make_ready` is to be awaited before it is published."""
        return next((one for one in self.preparers if not one.is_ready(topic, payload, source, owner)), None)

    def reaches(self, topic: bytes, device: DeviceKey) -> bool:
        """Whether a device subscribes to a topic, and is connected, or has a session that lasts."""
        if not (self._sessions.is_connected(device) or self._sessions.is_stored(device)):
            return False
        plain, groups = self._tree.match(topic)
        return any(device in one for one in plain) or any(device in one.members for one in groups)

    def pace(self, device: DeviceKey, line: Overhead) -> Pace:
        """The allowance of a device, whose connections share it: here each of them can make the daemon write much."""
        if (known := self._paces.get(device)) is None:
            known = self._paces[device] = line.pace()
        return known

    def arriving(self, device: Device) -> Arriving:
        """The memory for the packets of a connection of this device."""
        return Arriving(self._arriving, device.owner)

    def queued(self, device: Device) -> QueuedBytes:
        """The memory for deliveries that wait on a connection of this device."""
        return QueuedBytes(self._queued, device.owner)

    # --- Subscriptions ---

    def subscribe(
        self,
        device: DeviceKey,
        owner: UserKey,
        filter_: bytes,
        subscription: TopicSubscriptionRecord,
        *,
        retain_handling: int,
    ) -> Search:
        """Add a subscription, or replace it; return the search for the retained messages to send (MQTT 5.0, 3.3.1.3).

        `filter_` is valid. Raises TooManySubscriptions.
        """
        own = self._subscriptions.get(device, {})
        is_new = filter_ not in own
        if is_new and len(own) >= MQTT_SUBSCRIPTIONS_MAX:
            raise TooManySubscriptions
        owner = self._owners.get(device, owner)  # the holder stays the same for as long as it has any
        if is_new and self._subscribed.get(owner, 0) + _weight(filter_) > MQTT_SUBSCRIBED_BYTES:
            raise TooLongSubscriptions
        self._add(device, owner, filter_, subscription)
        if filter_.startswith(SHARED) or retain_handling == 2 or (retain_handling == 1 and not is_new):
            return iter(())
        if b"+" not in filter_ and b"#" not in filter_:
            found = self._retained.get(filter_)
            is_sent = found is not None and not _has_expired(found, self._clock.now_ms()) and _is_for(found, owner)
            return iter((found,) if is_sent else ())
        if self._all_retained is None:
            self._all_retained = tuple(self._retained.values())
        return self._search(filter_, self._all_retained, owner)

    def _search(self, filter_: bytes, all_retained: tuple[RetainedRecord, ...], owner: UserKey) -> Search:
        """A message that was replaced or deleted since the subscription is left out: the subscriber was told then."""
        retained, now_ms, found = self._retained, self._clock.now_ms(), 0
        is_match = pattern_of(filter_).fullmatch
        for one in all_retained:
            is_sent = is_match(one.topic) and not _has_expired(one, now_ms) and _is_for(one, owner)
            if is_sent and retained.get(one.topic) is one:
                yield one
                found += 1
                if found == MQTT_WAITING_MESSAGES:
                    return
            else:
                yield None

    def unsubscribe(self, device: DeviceKey, filter_: bytes) -> bool:
        own = self._subscriptions.get(device, {})
        if own.pop(filter_, None) is None:
            return False
        self._drop(device, filter_)
        if not own:
            self.forget(device)
        return True

    def _drop(self, device: DeviceKey, filter_: bytes) -> None:
        self._tree.remove(*_place(filter_, device))
        owner = self._owners[device]
        self._subscribed[owner] -= _weight(filter_)
        if not self._subscribed[owner]:
            del self._subscribed[owner]

    def forget(self, device: DeviceKey) -> None:
        """The device's session has ended."""
        for filter_ in self._subscriptions.pop(device, {}):
            self._drop(device, filter_)
        self._owners.pop(device, None)

    def hand_over(self, device: DeviceKey, owner: UserKey) -> None:
        """The device has another owner."""
        former = self._owners.get(device)
        if former is None or former == owner:
            return
        weight = sum(map(_weight, self._subscriptions[device]))
        self._subscribed[former] -= weight
        if not self._subscribed[former]:
            del self._subscribed[former]
        self._subscribed[owner] = self._subscribed.get(owner, 0) + weight
        self._owners[device] = owner

    def _add(self, device: DeviceKey, owner: UserKey, filter_: bytes, subscription: TopicSubscriptionRecord) -> None:
        own = self._subscriptions.setdefault(device, {})
        if filter_ not in own:
            self._owners[device] = owner
            self._subscribed[owner] = self._subscribed.get(owner, 0) + _weight(filter_)
        own[filter_] = subscription
        inner, _, group = _place(filter_, device)
        self._tree.add(inner, device, subscription, group)

    # --- Messages ---

    def distribute(self, message: TopicMessage, source: DeviceKey, owner: UserKey, pace: Pace) -> None:
        """Publish what a device sends as `publish` does, and charge the cost to the connection's allowance. Raises
        TooManyRetained, and what a hearer refuses."""
        for hear in self._hearers:
            if hear(message, source, owner, pace):
                return
        if message.retain:
            pace.spend(_RETAINED_FRAMES + len(message.payload) // _RETAINED_BYTES_OF_A_FRAME)
        reached = self.publish(message, source, owner)
        if reached > _FAN_OUT:
            pace.spend(reached)

    def publish(
        self, message: TopicMessage, source: DeviceKey, owner: UserKey, *, audience: frozenset[UserKey] | None = None
    ) -> int:
        """Deliver a message to all who subscribe to its topic; return what that cost, in deliveries. The topic is
        valid.

        What must be durable commits with the open group. With an `audience`, the service itself is the source: only
        devices of these users get the message, and it is retained in memory alone. Raises TooManyRetained.
        """
        if message.retain:
            self._retain(message, owner, audience)
        self._messages += 1
        plain, groups = self._tree.match(message.topic)
        cost, looked_at = 0, sum(map(len, plain))
        for device, subscriptions in _by_device(plain).items():
            if audience is None or self._owners.get(device) in audience:
                cost += self._deliver(device, message, subscriptions, source)
        for group in groups:
            paid, passed = self._deliver_to_one(group, message, source, audience)
            cost, looked_at = cost + paid, looked_at + passed
        return cost + looked_at // _LOOKS_OF_A_DELIVERY

    def _deliver_to_one(
        self, group: SharedSubscription, message: TopicMessage, source: DeviceKey, audience: frozenset[UserKey] | None
    ) -> tuple[int, int]:
        """Deliver to a member who is connected; else the message waits for the first whose session lasts. Returns
        what that cost, as `_deliver`, and how many were looked at."""
        passed = 0
        for may_be_away in (False, True):
            for device, one in group.members.items():
                passed += 1
                if not may_be_away and not self._sessions.is_connected(device):
                    continue
                if audience is not None and self._owners.get(device) not in audience:
                    continue
                if paid := self._deliver(device, message, [one], source):
                    group.move_to_end(device)
                    return paid, passed
        return 0, passed

    def _deliver(
        self,
        device: DeviceKey,
        message: TopicMessage,
        subscriptions: Sequence[TopicSubscriptionRecord],
        source: DeviceKey,
    ) -> int:
        """Returns what the delivery costs; 0 when there is none."""
        wanted = [one for one in subscriptions if not (one.no_local and device == source)]
        if not wanted:
            return 0
        qos = min(message.qos, max(one.qos for one in wanted))
        is_delivered = self._sessions.send(
            device,
            topic=message.topic,
            payload=message.payload,
            qos=qos,
            retain=message.retain and any(one.retain_as_published for one in wanted),
            properties=message.properties,
            subscription_ids=[one.subscription_id for one in wanted if one.subscription_id],
            expires_on=message.expires_on,
        )
        if not is_delivered:
            return 0
        self._deliveries += 1
        return _WRITTEN_DELIVERY if qos and self._sessions.is_stored(device) else 1

    # --- Retained messages ---

    def _retain(self, message: TopicMessage, owner: UserKey, audience: frozenset[UserKey] | None) -> None:
        if not message.payload:
            if (known := self._retained.pop(message.topic, None)) is not None:
                self._all_retained = None
                self._count(known, -1)
                self._forget_stored(known)
            return
        wanted = RetainedRecord(
            message.topic, message.payload, message.qos, message.properties, message.expires_on, owner, audience
        )
        if self._lacks_room(wanted, owner) is not None:
            self._drop_expired()
            if (refusal := self._lacks_room(wanted, owner)) is not None:
                raise refusal
        if audience is not None:
            if (known := self._retained.get(message.topic)) is not None:
                self._forget_stored(known)
            self._keep(wanted)
            return
        self._keep(wanted)
        size = _size(wanted) + WRITE_BYTES
        self._database.write_nowait(lambda tx: tx.mqtt_topics.retain(wanted), size=size)

    def _forget_stored(self, message: RetainedRecord) -> None:
        if message.audience is None:
            self._database.write_nowait(partial(_forget, message.topic), size=WRITE_BYTES)

    def drop_retained(self, pattern: re.Pattern[bytes]) -> None:
        """Remove what devices have retained at topics that the service has for itself from now on."""
        for message in [one for one in self._retained.values() if pattern.fullmatch(one.topic)]:
            if message.audience is None:
                del self._retained[message.topic]
                self._all_retained = None
                self._count(message, -1)
                self._forget_stored(message)

    def _lacks_room(self, wanted: RetainedRecord, owner: UserKey) -> TooManyRetained | None:
        """The refusal of a retained message that exceeds a bound once it replaces the present one; else None."""
        known = self._retained.get(wanted.topic)
        count, size = int(known is None), _size(wanted) - (0 if known is None else _size(known))
        of_user, bytes_of_user = self._retained_of.get(owner, (0, 0))
        if known is not None and known.owner == owner:
            of_user, bytes_of_user = of_user - 1, bytes_of_user - _size(known)
        if of_user >= MQTT_RETAINED_OF_USER or bytes_of_user + _size(wanted) > MQTT_RETAINED_BYTES_OF_USER:
            return TooManyRetainedOfUser()
        if len(self._retained) + count > MQTT_RETAINED_MAX or self._retained_bytes + size > MQTT_RETAINED_BYTES:
            return TooManyRetained()
        return None

    def _count(self, message: RetainedRecord, sign: int) -> None:
        """Count a message as one that is kept, or no longer kept."""
        size = sign * _size(message)
        self._retained_bytes += size
        if message.owner is not None:
            many, held = self._retained_of.get(message.owner, (0, 0))
            self._retained_of[message.owner] = many + sign, held + size
            if not many + sign:
                del self._retained_of[message.owner]

    def _keep(self, message: RetainedRecord) -> None:
        if (known := self._retained.get(message.topic)) is not None:
            self._count(known, -1)
        self._count(message, 1)
        self._retained[message.topic] = message
        self._all_retained = None
        if message.expires_on is not None:
            self._first_expiry = min(self._first_expiry, message.expires_on)

    def _drop_expired(self) -> None:
        now_ms = self._clock.now_ms()
        if now_ms < self._first_expiry:  # a device that goes on while there is no room must not cost a look at each
            return
        for message in [one for one in self._retained.values() if _has_expired(one, now_ms)]:
            del self._retained[message.topic]
            self._all_retained = None
            self._count(message, -1)
            self._database.write_nowait(partial(_forget, message.topic))
        expiries = (one.expires_on for one in self._retained.values() if one.expires_on is not None)
        self._first_expiry = min(expiries, default=math.inf)

    def statistics(self) -> TopicStatistics:
        subscriptions = sum(map(len, self._subscriptions.values()))
        return TopicStatistics(
            subscriptions, len(self._retained), self._retained_bytes, self._messages, self._deliveries
        )


def _by_device(
    found: Iterable[dict[DeviceKey, TopicSubscriptionRecord]],
) -> dict[DeviceKey, list[TopicSubscriptionRecord]]:
    """A device whose filters overlap gets a message once (MQTT 5.0, 3.3.4)."""
    by_device: dict[DeviceKey, list[TopicSubscriptionRecord]] = {}
    for subscriptions in found:
        for device, subscription in subscriptions.items():
            by_device.setdefault(device, []).append(subscription)
    return by_device


def _place(filter_: bytes, device: DeviceKey) -> tuple[bytes, DeviceKey, bytes]:
    """Where a subscription stands in the tree: its filter, its device and its group."""
    shared = split_shared(filter_) if filter_.startswith(SHARED) else None
    return (filter_, device, b"") if shared is None else (shared[1], device, shared[0])


def is_subscribable(filter_: bytes) -> bool:
    """Whether a filter is well-formed, also a shared one."""
    if not filter_.startswith(SHARED):
        return is_filter(filter_)
    shared = split_shared(filter_)
    return shared is not None and is_filter(shared[1])


def _weight(filter_: bytes) -> int:
    """The bytes that a subscription takes in memory: itself twice, and a node of the tree for each level."""
    return 300 + 2 * len(filter_) + 350 * (filter_.count(b"/") + 1)


def _size(message: RetainedRecord) -> int:
    return len(message.topic) + len(message.payload) + len(message.properties)


def _is_for(message: RetainedRecord, owner: UserKey) -> bool:
    return message.audience is None or owner in message.audience


def _has_expired(message: RetainedRecord, now_ms: int) -> bool:
    return message.expires_on is not None and message.expires_on <= now_ms


def _forget(topic: bytes, tx: Transaction) -> None:
    tx.mqtt_topics.forget(topic)
