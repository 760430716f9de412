"""The infrastructure that every capability is built on."""

import msgspec

from broker.clock import Clock
from broker.cluster.facts import FactLog
from broker.cluster.knock import Knock
from broker.cluster.leases import LeaseName, Leases
from broker.cluster.news import News
from broker.facts import Router
from broker.files import Files
from broker.life import Life
from broker.secrets import Vault
from broker.site import Site
from broker.trace.audit import AuditLog
from broker.trace.refusals import Refusals
from broker.trusted_time import TrustedTime
from config.settings import Settings
from storage.database import Database


class Core(msgspec.Struct, frozen=True):
    settings: Settings
    database: Database
    vault: Vault
    clock: Clock
    router: Router
    news: News
    #: The public addresses of this daemon.
    site: Site
    life: Life
    leases: Leases
    audit: AuditLog
    refusals: Refusals
    trusted_time: TrustedTime
    files: Files
    #: Hears of what other nodes write into the store; None: this daemon is the only one that writes.
    peers: FactLog | None = None

    def knock(self, lease: LeaseName, worker: str) -> Knock:
        """A wakeup of the worker of this name, on the node that has this lease."""
        return Knock(self.database, self.news, worker, None if self.peers is None else self.leases.of(lease))
