"""Builds alarms, and what tells of them."""

import msgspec

from broker.accounts.room import AccountsRoom
from broker.alarms.alarms import AlarmBook
from broker.alarms.links import AlarmLinks
from broker.alarms.notices import NoticeSender, NoticeStatistics
from broker.alarms.readers import AlarmReaders
from broker.alarms.telling import AlarmTelling
from broker.alarms.telling_settings import TellingSettings
from broker.alarms.upkeep import AlarmUpkeep
from broker.alarms.ways import AlarmWays
from broker.cluster.leases import LeaseName
from broker.core import Core
from broker.devices.room import DevicesRoom
from broker.mail import AlarmMail, Mails


class AlarmsRoom(msgspec.Struct, frozen=True):
    alarms: AlarmBook
    settings: TellingSettings
    telling: AlarmTelling
    links: AlarmLinks
    readers: AlarmReaders


async def open_alarms(
    core: Core, mails: Mails, accounts: AccountsRoom, devices: DevicesRoom, ways: AlarmWays | None
) -> AlarmsRoom:
    """Without `ways`, notices stay in the queue; mails are sent."""
    lease = core.leases.of(LeaseName.UPKEEP)
    upkeep = AlarmUpkeep(core.database, core.clock, core.router, lease, core.settings.alarms.keep_days)
    core.life.worker("alarms", upkeep.run_forever, lease=lease, statistics=upkeep.statistics)
    links = AlarmLinks(core.vault, core.clock, core.site)
    settings = TellingSettings(core.database, core.clock, core.vault, core.settings.alarms.apprise, ways)
    readers = AlarmReaders(core.database, devices.registry)
    of_mails = core.leases.of(LeaseName.MAILS)
    due, notices_wait = (core.knock(LeaseName.MAILS, worker) for worker in ("alarms told", "alarm notices"))
    telling = AlarmTelling(
        core.database, core.clock, core.vault, mails, links, settings, readers, of_mails, due, notices_wait
    )
    core.life.worker("alarms told", telling.tell_forever, lease=of_mails, statistics=telling.statistics)
    mails.ask_before(AlarmMail.kind, telling.may_be_mailed)
    if ways is None:
        core.life.observe("alarm notices", NoticeStatistics)
    else:
        sender = NoticeSender(
            core.database, core.clock, core.vault, settings, readers, of_mails, notices_wait, ways, due.set
        )
        core.life.worker("alarm notices", sender.send_forever, lease=of_mails, statistics=sender.statistics)
    book = AlarmBook(core.database, core.clock)
    accounts.claims.ends("Alarms", book.end_all_of)
    return AlarmsRoom(book, settings, telling, links, readers)
