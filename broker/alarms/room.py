"""Builds alarms, and what tells of them."""

from functools import partial

import msgspec

from broker.accounts.room import AccountsRoom
from broker.alarms.alarms import AlarmBook
from broker.alarms.links import AlarmLinks
from broker.alarms.telling import AlarmTelling
from broker.alarms.upkeep import AlarmUpkeep
from broker.alarms.ways import AlarmWays
from broker.cluster.leases import LeaseName
from broker.core import Core
from broker.mail import Mails


class AlarmsRoom(msgspec.Struct, frozen=True):
    alarms: AlarmBook
    telling: AlarmTelling
    links: AlarmLinks


async def open_alarms(core: Core, mails: Mails, accounts: AccountsRoom, ways: AlarmWays | None) -> AlarmsRoom:
    """Without `ways`, notices stay in the queue; mails are sent."""
    lease = core.leases.of(LeaseName.UPKEEP)
    upkeep = AlarmUpkeep(core.database, core.clock, core.router, lease, core.settings.alarms.keep_days)
    core.life.worker("alarms", upkeep.run_forever, lease=lease, statistics=upkeep.statistics)
    links = AlarmLinks(core.vault, core.clock, core.site)
    of_mails = core.leases.of(LeaseName.MAILS)
    telling = AlarmTelling(
        core.database,
        core.clock,
        core.vault,
        mails,
        links,
        of_mails,
        core.knock(LeaseName.MAILS, "alarms told"),
        core.settings.alarms.apprise,
        ways,
    )
    core.life.worker("alarms told", telling.tell_forever, lease=of_mails, statistics=telling.statistics)
    if ways is not None:
        core.life.worker("alarm notices", partial(telling.send_forever, ways), lease=of_mails)
    book = AlarmBook(core.database, core.clock)
    accounts.claims.ends("Alarms", book.end_all_of)
    return AlarmsRoom(book, telling, links)
