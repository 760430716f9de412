"""The rooms of the broker that the commands of the control socket use."""

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # a client of the socket imports the commands' answers, and not the daemon
    from broker.accounts.room import AccountsRoom
    from broker.core import Core
    from broker.device_types.room import DeviceTypesRoom
    from broker.devices.room import DevicesRoom
    from broker.forwarding.room import ForwardingRoom
    from broker.found.room import FoundRoom
    from broker.leaving.room import LeavingRoom
    from broker.limits.room import LimitsRoom
    from broker.messages.room import MessagesRoom
    from broker.monetization.room import MonetizationRoom
    from broker.provisioning.service import Provisioning
    from broker.rules.room import RulesRoom


class ControlRooms(Protocol):
    """`broker/services.py: Services` has them all; a capability that is not named here is not used here."""

    @property
    def accounts(self) -> "AccountsRoom": ...

    @property
    def core(self) -> "Core": ...

    @property
    def device_types(self) -> "DeviceTypesRoom": ...

    @property
    def devices(self) -> "DevicesRoom": ...

    @property
    def forwarding(self) -> "ForwardingRoom": ...

    @property
    def found(self) -> "FoundRoom": ...

    @property
    def leaving(self) -> "LeavingRoom": ...

    @property
    def limits(self) -> "LimitsRoom": ...

    @property
    def messages(self) -> "MessagesRoom": ...

    @property
    def monetization(self) -> "MonetizationRoom": ...

    @property
    def provisioning(self) -> "Provisioning": ...

    @property
    def rules(self) -> "RulesRoom": ...
