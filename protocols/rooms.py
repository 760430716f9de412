"""The rooms of the broker that each front end for devices uses."""

from typing import Protocol

from broker.accounts.room import AccountsRoom
from broker.core import Core
from broker.device_management.room import DeviceManagementRoom
from broker.device_sessions.room import DeviceSessionsRoom
from broker.device_types.room import DeviceTypesRoom
from broker.devices.room import DevicesRoom
from broker.limits.room import LimitsRoom
from broker.messages.log_feeds import LogFeeds
from broker.messages.room import MessagesRoom
from broker.operating.room import OperatingRoom
from broker.registration.room import RegistrationRoom
from broker.routing.room import RoutingRoom
from broker.topics.room import TopicsRoom
from broker.wanted.wanted import Wanted
from broker.wills.wills import Wills


class DeviceRooms(Protocol):
    """All front ends use these. `broker/services.py: Services` has all rooms; what is not named here is not used."""

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
    def wanted(self) -> Wanted: ...

    @property
    def routing(self) -> RoutingRoom: ...


class CoapRooms(DeviceRooms, Protocol):
    @property
    def accounts(self) -> AccountsRoom: ...

    @property
    def device_management(self) -> DeviceManagementRoom: ...


class MqttRooms(DeviceRooms, Protocol):
    @property
    def device_sessions(self) -> DeviceSessionsRoom: ...

    @property
    def topics(self) -> TopicsRoom: ...

    @property
    def wills(self) -> Wills: ...


class WebSocketRooms(DeviceRooms, Protocol):
    @property
    def accounts(self) -> AccountsRoom: ...

    @property
    def device_types(self) -> DeviceTypesRoom: ...

    @property
    def log_feeds(self) -> LogFeeds: ...

    @property
    def operating(self) -> OperatingRoom: ...
