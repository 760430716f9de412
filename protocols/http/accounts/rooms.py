"""The rooms of the broker that the accounts server uses."""

from typing import Protocol

from broker.accounts.room import AccountsRoom
from broker.alarms.room import AlarmsRoom
from broker.devices.room import DevicesRoom
from broker.monetization.room import MonetizationRoom
from broker.registration.room import RegistrationRoom
from broker.rules.room import RulesRoom
from broker.subscriptions.room import SubscriptionsRoom
from broker.trials.room import TrialsRoom


class AccountsServerRooms(Protocol):
    """`broker/services.py: Services` has them all; a capability that is not named here is not used here."""

    @property
    def accounts(self) -> AccountsRoom: ...

    @property
    def alarms(self) -> AlarmsRoom: ...

    @property
    def devices(self) -> DevicesRoom: ...

    @property
    def monetization(self) -> MonetizationRoom: ...

    @property
    def registration(self) -> RegistrationRoom: ...

    @property
    def rules(self) -> RulesRoom: ...

    @property
    def subscriptions(self) -> SubscriptionsRoom: ...

    @property
    def trials(self) -> TrialsRoom: ...
