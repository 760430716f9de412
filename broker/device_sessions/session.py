"""The session of one device."""

from collections.abc import Callable
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


class DeviceSession:
    """The session of a device that is connected, or away and expected back.

    `deliveries` were waiting when the connection began, in order; the ones up to `sent_until` may have been sent
    before. `received` are the packet ids of QoS 2 messages of the device that it has not released.
    """

    __slots__ = (
        "__weakref__",
        "actions_after",
        "begun",
        "client_id",
        "deliveries",
        "device",
        "expiry_seconds",
        "is_stored",
        "late",
        "next_number",
        "number",
        "outlet",
        "received",
        "sent_until",
        "subscriptions",
    )

    def __init__(self, device: DeviceKey, client_id: str, expiry_seconds: int) -> None:
        self.device = device
        self.client_id = client_id
        self.expiry_seconds = expiry_seconds
        # While a connection waits for its commit: its number, and what is called with whether the session goes on.
        self.number = 0
        self.begun: Callable[[DeviceSession, bool], None] | None = None
        self.is_stored = False
        self.outlet: SessionOutlet | None = None  # None while the device is away
        self.late: list[DeliveryRecord] = []  # that came while a new connection began
        self.subscriptions: dict[bytes, TopicSubscriptionRecord] = {}
        self.actions_after: Position | None = None
        self.deliveries: list[DeliveryRecord] = []
        self.received: list[int] = []
        self.sent_until = 0
        self.next_number = 1
