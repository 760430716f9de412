"""Builds provisioning."""

from broker.accounts.room import AccountsRoom
from broker.connectors.service import Connectors
from broker.core import Core
from broker.device_management.room import DeviceManagementRoom
from broker.device_types.room import DeviceTypesRoom
from broker.devices.room import DevicesRoom
from broker.limits.room import LimitsRoom
from broker.mail import Mails
from broker.provisioning.elsewhere import ProvisionedElsewhere
from broker.provisioning.service import Provisioning
from broker.registration.room import RegistrationRoom
from broker.rules.room import RulesRoom
from broker.subscriptions.room import SubscriptionsRoom


async def open_provisioning(
    core: Core,
    mails: Mails,
    accounts: AccountsRoom,
    device_types: DeviceTypesRoom,
    devices: DevicesRoom,
    registration: RegistrationRoom,
    limits: LimitsRoom,
    connectors: Connectors,
    device_management: DeviceManagementRoom,
    rules: RulesRoom,
    subscriptions: SubscriptionsRoom,
) -> Provisioning:
    provisioning = Provisioning(
        core.database,
        core.vault,
        accounts.passwords,
        core.clock,
        core.router,
        accounts.tokens,
        accounts.claims,
        device_types.catalog,
        device_types.documents,
        devices.registry,
        limits.quotas,
        registration.trust,
        connectors.catalog,
        device_management.images,
        rules.rulebook,
        subscriptions.subscriptions,
        mails,
        core.site,
    )
    if core.peers is not None:
        elsewhere = ProvisionedElsewhere(provisioning, core.news, core.router)
        core.life.worker("provisioning of others", elsewhere.read_forever)
    return provisioning
