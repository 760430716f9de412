"""The firehose: stored messages to the subscribers that watch their devices, each message encoded once.

The subscribers of each device are computed once and remembered until a subscriber is added or removed, or the device or
a grant changes. A batch of stored messages becomes one joined block of frames for each group of subscribers that watch
the same devices.
"""

from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec
import structlog

from broker.accounts.tokens import Caller
from broker.devices.registry import Device
from broker.envelope import Action
from broker.facts import (
    ActionStored,
    ApplicationGrantsChanged,
    DeviceChanged,
    FactPhase,
    GrantsChanged,
    MessagesStored,
    Router,
)
from broker.routing.connections import CloseReason
from broker.routing.named_devices import NO_DEVICES, NamedDevices, close_with_facts
from storage.keys import DeviceKey, Position, UserKey
from storage.records import MessageRow

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, eq=False)
class FeedEncoding:
    """One wire form; subscribers with the same object share the encoded frames, which are joined."""

    messages: Callable[[Sequence[tuple[MessageRow, Device]]], bytes]
    action: Callable[[Action], bytes]


def _nobody() -> None:
    """Nobody whose reading is counted."""


@dataclass(frozen=True, eq=False)
class Subscriber:
    """A subscriber of the firehose.

    `watches` decides about a device without waiting; `offer` takes joined frames, their number and the positions of the
    first and the last one, and returns at once.
    `named` are the devices that it names. `close` is called when one of them is deleted or no longer the subscriber's
    to read, and when the token is revoked; `token` is its SHA-256. `reader` is for whom it takes what is offered now.
    """

    watches: Callable[[Device], bool]
    offer: Callable[[bytes, int, Position, Position], None]
    encoding: FeedEncoding
    token: bytes
    close: Callable[[CloseReason], object]
    named: NamedDevices = NO_DEVICES
    reader: Callable[[], Caller | None] = _nobody


class FeedStatistics(msgspec.Struct, frozen=True):
    subscribers: int
    messages_offered: int


async def _is_ready() -> None:
    """All messages are published."""


class Feeds:
    def __init__(
        self,
        router: Router,
        sender: Callable[[DeviceKey], Device | None],
        ready: Callable[[], Awaitable[None]] = _is_ready,
        note_read: Callable[[Caller, Collection[UserKey]], None] | None = None,
    ) -> None:
        """
        Args:
            router: publishes the messages.
            sender: gives the device of a message that was just stored (messages/ingest.py holds the device).
            ready: returns when the messages of other nodes are published, too.
            note_read: counts who is offered messages of whose devices, once for each batch.
        """
        self._sender, self._note_read = sender, note_read
        #: Call it before somebody subscribes: from its return on no message is left out. Raises StoreError.
        self.ready = ready
        self._subscribers: list[Subscriber] = []
        self._interested: dict[DeviceKey, tuple[Subscriber, ...]] = {}
        self._offered = 0
        router.subscribe(MessagesStored, self._messages_stored, FactPhase.EFFECT)
        router.subscribe(ActionStored, self._action_stored, FactPhase.EFFECT)
        router.subscribe(DeviceChanged, self._device_changed, FactPhase.STATE)
        router.subscribe(GrantsChanged, self._grants_changed, FactPhase.STATE)
        router.subscribe(ApplicationGrantsChanged, self._grants_changed, FactPhase.STATE)
        close_with_facts(router, self._subscribers)

    @contextmanager
    def subscribe(self, subscriber: Subscriber) -> Iterator[None]:
        self._subscribers.append(subscriber)
        self._interested.clear()
        try:
            yield
        finally:
            self._subscribers.remove(subscriber)
            self._interested.clear()

    def has_subscribers(self) -> bool:
        return bool(self._subscribers)

    def _messages_stored(self, fact: MessagesStored) -> None:
        if not self._subscribers:
            return
        wanted: dict[tuple[Subscriber, ...], list[tuple[MessageRow, Device]]] = {}
        owners: dict[tuple[Subscriber, ...], set[UserKey]] = {}
        # Of each device: where its messages go. It is looked up once, because a hash of many subscribers takes long.
        places: dict[DeviceKey, tuple[list[tuple[MessageRow, Device]], Device] | None] = {}
        for row in fact.rows:
            key = row.device
            if key not in places:
                device = self._sender(key)
                interested = () if device is None else self._interested_in(device)
                places[key] = (wanted.setdefault(interested, []), device) if device and interested else None
                if device and interested:
                    owners.setdefault(interested, set()).add(device.owner)
            if (place := places[key]) is not None:
                place[0].append((row, place[1]))
        for subscribers, pairs in wanted.items():
            frames: dict[FeedEncoding, bytes] = {}
            for subscriber in subscribers:
                encoding = subscriber.encoding
                if (joined := frames.get(encoding)) is None:
                    joined = frames[encoding] = encoding.messages(pairs)
                _offer(subscriber, joined, len(pairs), pairs[0][0].position, pairs[-1][0].position)
                self._offered += len(pairs)
                self._note(subscriber, owners[subscribers])

    def _action_stored(self, fact: ActionStored) -> None:
        """Offer an Action to the subscribers that watch its source (reference 19.2)."""
        if not self._subscribers or (device := self._sender(fact.source)) is None:
            return
        frames: dict[FeedEncoding, bytes] = {}
        for subscriber in self._interested_in(device):
            encoding = subscriber.encoding
            if (frame := frames.get(encoding)) is None:
                frame = frames[encoding] = encoding.action(fact.action)
            _offer(subscriber, frame, 1, fact.action.position, fact.action.position)
            self._note(subscriber, (device.owner,))

    def _note(self, subscriber: Subscriber, owners: Collection[UserKey]) -> None:
        if self._note_read is not None and (caller := subscriber.reader()) is not None:
            self._note_read(caller, owners)

    def _interested_in(self, device: Device) -> tuple[Subscriber, ...]:
        interested = self._interested.get(device.key)
        if interested is None:
            interested = tuple(one for one in self._subscribers if one.watches(device))
            self._interested[device.key] = interested
        return interested

    def _device_changed(self, fact: DeviceChanged) -> None:
        self._interested.pop(fact.device, None)

    def _grants_changed(self, _fact: GrantsChanged | ApplicationGrantsChanged) -> None:
        self._interested.clear()

    def statistics(self) -> FeedStatistics:
        return FeedStatistics(len(self._subscribers), self._offered)


def _offer(subscriber: Subscriber, frames: bytes, count: int, first: Position, last: Position) -> None:
    try:
        subscriber.offer(frames, count, first, last)
    except Exception:  # noqa: BLE001 - a failing subscriber must not harm the others
        _log.exception("feed_subscriber_failed", subscriber=repr(subscriber))
