"""Builds what deletes users."""

import msgspec

from broker.accounts.room import AccountsRoom
from broker.cluster.leases import LeaseName
from broker.core import Core
from broker.devices.room import DevicesRoom
from broker.export.exports import Exports
from broker.leaving.archives import Archives
from broker.leaving.erasing import Erasing, Holders
from broker.leaving.leaving import Leaving
from broker.mail import Mails
from broker.messages.room import MessagesRoom


class LeavingRoom(msgspec.Struct, frozen=True):
    leaving: Leaving
    archives: Archives


async def open_leaving(
    core: Core,
    mails: Mails,
    accounts: AccountsRoom,
    devices: DevicesRoom,
    messages: MessagesRoom,
    exports: Exports,
) -> LeavingRoom:
    archives = Archives(
        core.database,
        devices.registry,
        messages.mids,
        core.clock,
        core.files,
        core.knock(LeaseName.UPKEEP, "archives"),
    )
    core.life.worker(
        "archives", archives.work_forever, lease=core.leases.of(LeaseName.UPKEEP), statistics=archives.statistics
    )
    holders = Holders(accounts.tokens, accounts.claims, devices, messages.projector, exports, archives, mails)
    leaving = Leaving(
        core.database, accounts.tokens, Erasing(core, holders), core.knock(LeaseName.UPKEEP, "leaving users")
    )
    core.life.worker(
        "leaving users", leaving.work_forever, lease=core.leases.of(LeaseName.UPKEEP), statistics=leaving.statistics
    )
    return LeavingRoom(leaving, archives)
