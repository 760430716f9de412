"""The session of one device."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from storage.keys import DeviceKey, Position
from storage.mqtt_sessions import DeliveryRecord, TopicSubscriptionRecord

#: Turns the text of an Action into what is sent to the device.
Written = Callable[[str], bytes]


class SessionOutlet(Protocol):
    """The connection of a session. Both return at once."""

    def send(self, delivery: DeliveryRecord) -> None:
        """Send with QoS 1 or 2, as soon as it is durable that the delivery waits."""

    def offer(self, delivery: DeliveryRecord) -> bool:
        """Send with QoS 0; False when the device does not keep up."""


@dataclass(eq=False, slots=True, weakref_slot=True)
class DeviceSession:
    """The session of a device that is connected, or away and expected back.

    `deliveries` were waiting when the connection began, in order; the ones up to `sent_until` may have been sent
    before. `received` are the packet ids of QoS 2 messages of the device that it has not released.
    """

    device: DeviceKey
    client_id: str
    expiry_seconds: int
    # While a connection waits for its commit: its number, and what is called with whether the session goes on.
    number: int = 0
    begun: Callable[["DeviceSession", bool], None] | None = None
    #: Of several nodes: the connection, as the store names it.
    holder: str = ""
    is_stored: bool = False
    outlet: SessionOutlet | None = None  # None while the device is away
    late: list[DeliveryRecord] = field(default_factory=list)  # that came while a new connection began
    subscriptions: dict[bytes, TopicSubscriptionRecord] = field(default_factory=dict)
    actions_after: Position | None = None
    deliveries: list[DeliveryRecord] = field(default_factory=list)
    received: list[int] = field(default_factory=list)
    sent_until: int = 0
    next_number: int = 1
