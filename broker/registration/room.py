"""Builds the registration of secure devices and the approved lists."""

import msgspec

from broker.accounts.room import AccountsRoom
from broker.cluster.leases import LeaseName
from broker.core import Core
from broker.device_types.room import DeviceTypesRoom
from broker.devices.room import DevicesRoom
from broker.registration.admission import Admission
from broker.registration.approved_lists import ApprovedLists
from broker.registration.registrations import Registrations
from broker.registration.trust import Trust
from broker.registration.uploads import Uploads


class RegistrationRoom(msgspec.Struct, frozen=True):
    trust: Trust
    admission: Admission
    registrations: Registrations
    approved_lists: ApprovedLists
    uploads: Uploads


async def open_registration(
    core: Core, accounts: AccountsRoom, device_types: DeviceTypesRoom, devices: DevicesRoom
) -> RegistrationRoom:
    database, clock = core.database, core.clock
    trust = Trust(database, clock)
    await trust.reload()
    uploads = Uploads(database, clock, core.knock(LeaseName.UPKEEP, "approved lists"))
    core.life.worker(
        "approved lists", uploads.work_forever, lease=core.leases.of(LeaseName.UPKEEP), statistics=uploads.statistics
    )
    return RegistrationRoom(
        trust=trust,
        admission=Admission(devices.registry, trust),
        registrations=Registrations(
            database,
            clock,
            accounts.permissions,
            device_types.catalog,
            devices.inventory,
            devices.tokens,
            trust,
            pin_seconds=core.settings.secure.pin_seconds,
        ),
        approved_lists=ApprovedLists(database, clock, uploads),
        uploads=uploads,
    )
