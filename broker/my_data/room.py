"""Builds what owners do with their data."""

import msgspec

from broker.accounts.room import AccountsRoom
from broker.cluster.leases import LeaseName
from broker.core import Core
from broker.device_types.room import DeviceTypesRoom
from broker.devices.room import DevicesRoom
from broker.export.exports import Exports
from broker.messages.recounts import Recounts
from broker.messages.rollup_days import RollupDays
from broker.messages.room import MessagesRoom
from broker.my_data.erasures import Erasures
from broker.my_data.imports import Imports
from broker.my_data.sheets import Sheets


class MyDataRoom(msgspec.Struct, frozen=True):
    erasures: Erasures
    imports: Imports
    sheets: Sheets


async def open_my_data(
    core: Core,
    accounts: AccountsRoom,
    device_types: DeviceTypesRoom,
    devices: DevicesRoom,
    messages: MessagesRoom,
    export: Exports,
) -> MyDataRoom:
    lease = core.leases.of(LeaseName.FOLDS)  # the node that has it holds the rollups, which are counted again
    erasures = Erasures(
        core.database,
        devices.registry,
        Recounts(core.database, messages.projector, lease),
        lease,
        core.clock,
        core.knock(LeaseName.FOLDS, "erasures"),
        export.end_with,
    )
    core.life.worker("erasures", erasures.work_forever, lease=lease, statistics=erasures.statistics)
    upkeep = core.leases.of(LeaseName.UPKEEP)
    imports = Imports(
        core.database,
        devices.registry,
        device_types.catalog,
        accounts.permissions,
        messages.ingest,
        core.files,
        upkeep,
        core.clock,
        core.knock(LeaseName.UPKEEP, "imports"),
    )
    accounts.claims.ends("Imports", imports.end_all_of)
    core.life.worker("imports", imports.work_forever, lease=upkeep, statistics=imports.statistics)
    settings = core.settings.storage
    sheets = Sheets(core.database, core.clock, retention_days=settings.retention_days, rollups=RollupDays.of(settings))
    return MyDataRoom(erasures, imports, sheets)
