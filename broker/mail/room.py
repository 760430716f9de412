"""Builds the mail queue."""

from functools import partial

from broker.cluster.leases import LeaseName
from broker.core import Core
from broker.mail.queue import Mails
from broker.mail.transport import MailTransport


async def open_mail(core: Core, transport: MailTransport | None) -> Mails:
    """Open the mail queue. Without a transport, mails stay in it."""
    mails = Mails(core.database, core.leases.of(LeaseName.MAILS), core.vault, core.clock, core.settings, core.site)
    if core.peers is not None:
        mails.share(core.news)
    if transport is None:
        core.life.observe("mails", mails.statistics)
    else:
        core.life.worker(
            "mails",
            partial(mails.deliver_forever, transport),
            lease=core.leases.of(LeaseName.MAILS),
            statistics=mails.statistics,
        )
    return mails
