"""The rooms of the broker that the MQTT front end uses."""

from typing import Protocol

from broker.core import Core
from broker.device_sessions.room import DeviceSessionsRoom
from broker.devices.room import DevicesRoom
from broker.limits.room import LimitsRoom
from broker.messages.room import MessagesRoom
from broker.registration.room import RegistrationRoom
from broker.routing.room import RoutingRoom
from broker.topics.room import TopicsRoom
from broker.wills.wills import Wills


class MqttRooms(Protocol):
    """`broker/services.py: Services` has them all; a capability that is not named here is not used here."""

    @property
    def core(self) -> Core: ...

    @property
    def devices(self) -> DevicesRoom: ...

    @property
    def registration(self) -> RegistrationRoom: ...

    @property
    def limits(self) -> LimitsRoom: ...

    @property
    def messages(self) -> MessagesRoom: ...

    @property
    def device_sessions(self) -> DeviceSessionsRoom: ...

    @property
    def topics(self) -> TopicsRoom: ...

    @property
    def wills(self) -> Wills: ...

    @property
    def routing(self) -> RoutingRoom: ...
