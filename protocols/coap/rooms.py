"""The rooms of the broker that the CoAP front end uses."""

from typing import Protocol

from broker.accounts.room import AccountsRoom
from broker.core import Core
from broker.device_management.room import DeviceManagementRoom
from broker.devices.room import DevicesRoom
from broker.limits.room import LimitsRoom
from broker.messages.room import MessagesRoom
from broker.registration.room import RegistrationRoom
from broker.routing.room import RoutingRoom


class CoapRooms(Protocol):
    """`broker/services.py: Services` has them all; a capability that is not named here is not used here."""

    @property
    def core(self) -> Core: ...

    @property
    def accounts(self) -> AccountsRoom: ...

    @property
    def devices(self) -> DevicesRoom: ...

    @property
    def registration(self) -> RegistrationRoom: ...

    @property
    def limits(self) -> LimitsRoom: ...

    @property
    def messages(self) -> MessagesRoom: ...

    @property
    def device_management(self) -> DeviceManagementRoom: ...

    @property
    def routing(self) -> RoutingRoom: ...
