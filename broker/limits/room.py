"""Builds rate limits, quotas and the ledger that keeps their counters over a restart."""

import resource
from typing import Final

import msgspec

from broker.cluster.leases import LeaseName
from broker.core import Core
from broker.devices.room import DevicesRoom
from broker.limits.addresses import AddressLimit
from broker.limits.bodies import BodyBudget
from broker.limits.ledger import Ledger
from broker.limits.meters import Meters, rates_of
from broker.limits.overhead import Overhead
from broker.limits.overview import LimitsOverview
from broker.limits.quotas import Quotas
from broker.limits.shared_ledger import SharedLedger
from broker.limits.sockets import Sockets
from broker.limits.strangers import Strangers
from broker.limits.usage_days import UsageDays
from broker.mail import Mails
from config.limits import UNAUTHENTICATED_WAITING
from config.settings import Limits

_MANY_DESCRIPTORS: Final = 1_048_576


class LimitsRoom(msgspec.Struct, frozen=True):
    ledger: Ledger
    meters: Meters
    addresses: AddressLimit
    overhead: Overhead
    strangers: Strangers
    sockets: Sockets
    bodies: BodyBudget
    quotas: Quotas
    usage_days: UsageDays
    #: The quotas that messages and deliveries are charged to; None when the operator has switched quotas off.
    charged: Quotas | None
    overview: LimitsOverview

    def renew(self, limits: Limits) -> None:
        """Replace the rates and numbers. Switching rate limits or quotas on or off needs a restart."""
        self.meters.renew(rates_of(limits))
        self.addresses.renew(limits.calls_per_address)
        self.strangers.renew(
            in_all=limits.unauthenticated_connections,
            of_one_address=limits.unauthenticated_connections_per_address,
        )
        self.sockets.renew(limits)


async def open_limits(core: Core, mails: Mails, devices: DevicesRoom) -> LimitsRoom:
    settings, life = core.settings.limits, core.life
    counts_calls = settings.rate_limits == "on"
    shared = None if core.peers is None else SharedLedger(core.database, core.clock, core.peers.node)
    ledger = shared or Ledger(core.database, core.clock)
    await ledger.resume()
    life.worker("counters", ledger.save_forever, save=ledger.flush, statistics=ledger.statistics)
    meters = Meters(rates_of(settings) if counts_calls else None, ledger, core.clock, core.refusals)
    life.observe("rate limits", meters.statistics)
    addresses = AddressLimit(settings.calls_per_address if counts_calls else None, core.clock)
    life.observe("addresses", addresses.statistics)
    overhead = Overhead()
    life.observe("overhead", overhead.statistics)
    strangers = Strangers(
        in_all=settings.unauthenticated_connections,
        of_one_address=settings.unauthenticated_connections_per_address,
        waiting=_may_wait(),
    )
    life.observe("unauthenticated connections", strangers.statistics)
    sockets = Sockets(settings, _descriptors(), core.refusals)
    life.observe("authenticated connections", sockets.statistics)
    bodies = BodyBudget()
    life.observe("bodies", bodies.statistics)
    quotas = Quotas(core.database, core.clock, ledger, mails, devices.presence.is_connected)
    await quotas.reload()
    life.worker("quotas", quotas.attend_forever, statistics=quotas.statistics)
    usage_days = UsageDays(core.database, core.leases.of(LeaseName.UPKEEP), core.clock, quotas)
    life.worker("usage days", usage_days.note_forever, lease=core.leases.of(LeaseName.UPKEEP), save=usage_days.note)
    charged = quotas if settings.quotas == "on" else None
    return LimitsRoom(
        ledger=ledger,
        meters=meters,
        addresses=addresses,
        overhead=overhead,
        strangers=strangers,
        sockets=sockets,
        bodies=bodies,
        quotas=quotas,
        usage_days=usage_days,
        charged=charged,
        overview=LimitsOverview(core.database, ledger, meters, charged),
    )


def _may_wait() -> int:
    """Most connections that may wait: each takes a descriptor, and most descriptors are for authenticated peers."""
    return min(UNAUTHENTICATED_WAITING, _descriptors() // 4)


def _descriptors() -> int:
    """How many files the process may have open: the daemon raises its limit to the hard one."""
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return _MANY_DESCRIPTORS if descriptors == resource.RLIM_INFINITY else descriptors
