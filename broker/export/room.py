"""Builds exports."""

from broker.accounts.room import AccountsRoom
from broker.cluster.leases import LeaseName
from broker.core import Core
from broker.device_types.room import DeviceTypesRoom
from broker.devices.room import DevicesRoom
from broker.export.exports import Exports
from broker.export.requests import Planner
from broker.mail import Mails
from broker.messages.room import MessagesRoom
from broker.trials.room import TrialsRoom


async def open_export(
    core: Core,
    mails: Mails,
    accounts: AccountsRoom,
    device_types: DeviceTypesRoom,
    devices: DevicesRoom,
    messages: MessagesRoom,
    trials: TrialsRoom,
) -> Exports:
    planner = Planner(accounts.users, devices.registry, device_types.catalog, accounts.permissions, trials.exports)
    lease = core.leases.of(LeaseName.UPKEEP)
    exports = Exports(
        core.database,
        devices.registry,
        messages.mids,
        mails,
        core.clock,
        planner,
        devices.readers,
        core.files,
        lease,
        core.knock(LeaseName.UPKEEP, "exports"),
    )
    accounts.application_ends.ends("export", exports.end_all_of_application)
    core.life.worker("exports", exports.work_forever, lease=lease, statistics=exports.statistics)
    return exports
