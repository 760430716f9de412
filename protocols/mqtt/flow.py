"""Deliveries of QoS 1 and 2 to a device, without I/O: what waits, what is on its way, and what was acknowledged.

At most `window` deliveries are on their way; the others wait in order [MQTT-4.6.0-6]. Of too many that wait, the oldest
is dropped. The packet id of a delivery follows from its number, so it is the same on a later connection
[MQTT-4.4.0-1].
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from config.limits import MQTT_PACKET_BYTES, MQTT_WAITING_BYTES, MQTT_WAITING_MESSAGES
from protocols.mqtt.answers import MqttAnswers
from protocols.mqtt.messages import packet_of
from protocols.streams.outbox import SharedRoom
from storage.keys import Milliseconds
from storage.mqtt_sessions import DeliveryRecord

#: Deliveries on their way to a device that does not say how many it takes. Many clients have memory for few.
WINDOW: Final = 20
#: Most bytes on their way to a device, whatever Receive Maximum it announces. Further deliveries wait.
UNDER_WAY_BYTES: Final = 256 * 1024
_PACKET_IDS: Final = 0xFFFF


def packet_id_of(number: int) -> bytes:
    return (number % _PACKET_IDS + 1).to_bytes(2)


@dataclass(eq=False, slots=True, kw_only=True)
class Flow:
    """The deliveries of one connection.

    Args:
        answers: the words of the device's version.
        window: how many deliveries the device takes at once.
        sent_until: deliveries up to this number may have been sent on an earlier connection.
        dropped: called with the number of each delivery that is dropped.
        settled: called with the number of each delivery that the device has acknowledged.
        now_ms: the time, for messages that expire.
        queued: where the deliveries of this connection and of others are counted. While that is full, each of them
            holds at most 64 KiB.
    """

    answers: MqttAnswers
    window: int
    dropped: Callable[[int], None]
    settled: Callable[[int], None]
    sent_until: int = 0
    now_ms: Callable[[], Milliseconds]
    queued: SharedRoom | None = None
    _waiting: deque[DeliveryRecord] = field(default_factory=deque)
    _waiting_bytes: int = 0
    _by_id: dict[bytes, DeliveryRecord] = field(default_factory=dict)  # on their way
    _under_way: int = 0  # and their bytes
    _released: set[bytes] = field(default_factory=set)  # those of QoS 2 whose PUBREC has come

    def __post_init__(self) -> None:
        self.window = min(self.window, MQTT_WAITING_MESSAGES)

    def resume(self, deliveries: Iterable[DeliveryRecord]) -> bytes:
        """Take what an earlier connection left, in order; return the packets to send."""
        released = b""
        for delivery in deliveries:
            if delivery.is_released:
                packet_id = packet_id_of(delivery.number)
                self._take(packet_id, delivery)
                self._released.add(packet_id)
                released += self.answers.pubrel(packet_id)
            else:
                self._wait(delivery)
        self._bound()
        return released + self._fill()

    def add(self, delivery: DeliveryRecord) -> bytes:
        """Take a delivery; return the packets to send now."""
        self._wait(delivery)
        self._bound()
        return self._fill()

    def _bound(self) -> None:
        """Drop the oldest waiting deliveries beyond the bound. A single one may be as large as a packet."""
        while len(self._waiting) > 1 and (
            len(self._waiting) > MQTT_WAITING_MESSAGES or self._waiting_bytes > MQTT_WAITING_BYTES
        ):
            self.dropped(self._next().number)
        while (
            self._waiting
            and self._waiting_bytes + self._under_way > MQTT_PACKET_BYTES
            and self.queued is not None
            and self.queued.is_full
        ):
            self.dropped(self._next().number)

    def end(self) -> None:
        """The connection has ended: nothing of it is counted any longer."""
        if self.queued is not None:
            self.queued.add(-self._waiting_bytes - self._under_way)
            self.queued = None

    def _count(self, change: int) -> None:
        if self.queued is not None:
            self.queued.add(change)

    def puback(self, packet_id: bytes) -> bytes | None:
        """A delivery of QoS 1 was acknowledged; return the packets to send. None when there is no such delivery."""
        delivery = self._by_id.get(packet_id)
        if delivery is None or delivery.qos != 1:
            return None
        return self._settle(packet_id, delivery)

    def pubrec(self, packet_id: bytes, *, is_refused: bool = False) -> int | None:
        """A delivery of QoS 2 has arrived; return its number. None when there is no such delivery, or it was refused,
        which ends it; see `refused`."""
        delivery = self._by_id.get(packet_id)
        if delivery is None or delivery.qos != 2 or is_refused:
            return None
        self._released.add(packet_id)
        return delivery.number

    def pubcomp(self, packet_id: bytes) -> bytes | None:
        """A delivery of QoS 2 is complete; return the packets to send. None when there is no such delivery."""
        delivery = self._by_id.get(packet_id)
        if delivery is None or packet_id not in self._released:
            return None
        return self._settle(packet_id, delivery)

    def refused(self, packet_id: bytes) -> bytes | None:
        """The device has refused a delivery of QoS 2 [MQTT-4.3.3-4]; as `pubcomp`."""
        delivery = self._by_id.get(packet_id)
        if delivery is None or delivery.qos != 2 or packet_id in self._released:
            return None
        return self._settle(packet_id, delivery)

    def _settle(self, packet_id: bytes, delivery: DeliveryRecord) -> bytes:
        del self._by_id[packet_id]
        self._under_way -= delivery.size
        self._count(-delivery.size)
        self._released.discard(packet_id)
        self.settled(delivery.number)
        return self._fill()

    def _take(self, packet_id: bytes, delivery: DeliveryRecord) -> None:
        self._by_id[packet_id] = delivery
        self._under_way += delivery.size
        self._count(delivery.size)

    def _wait(self, delivery: DeliveryRecord) -> None:
        self._waiting.append(delivery)
        self._waiting_bytes += delivery.size
        self._count(delivery.size)

    def _next(self) -> DeliveryRecord:
        delivery = self._waiting.popleft()
        self._waiting_bytes -= delivery.size
        self._count(-delivery.size)
        return delivery

    def _fill(self) -> bytes:
        out = []
        while self._waiting and len(self._by_id) < self.window and self._under_way < UNDER_WAY_BYTES:
            delivery = self._next()
            packet_id = packet_id_of(delivery.number)
            is_again = delivery.number <= self.sent_until
            packet = packet_of(self.answers, delivery, self.now_ms(), packet_id=packet_id, dup=is_again)
            if not packet:  # expired, or larger than the device takes [MQTT-3.1.2-25]
                self.dropped(delivery.number)
                continue
            self._take(packet_id, delivery)
            self.sent_until = max(self.sent_until, delivery.number)
            out.append(packet)
        return b"".join(out)
