"""Builds plans, tiers and payments."""

import msgspec

from broker.core import Core
from broker.device_types.room import DeviceTypesRoom
from broker.devices.room import DevicesRoom
from broker.limits.room import LimitsRoom
from broker.mail import Mails
from broker.monetization.payments import Payments
from broker.monetization.plans import Plans
from broker.monetization.port import ManualProcessor, Processor
from broker.monetization.tiers import Tiers


class MonetizationRoom(msgspec.Struct, frozen=True):
    plans: Plans
    tiers: Tiers
    payments: Payments


async def open_monetization(
    core: Core,
    mails: Mails,
    device_types: DeviceTypesRoom,
    devices: DevicesRoom,
    limits: LimitsRoom,
    processor: Processor | None,
) -> MonetizationRoom:
    """Open monetization. Without a `processor`, the operator confirms payments."""
    database, clock = core.database, core.clock
    tiers = Tiers(database, clock, core.router, core.news, limits.quotas)
    await tiers.resume()
    core.life.worker("tiers", tiers.follow_forever)
    return MonetizationRoom(
        plans=Plans(database, clock, device_types.catalog, mails),
        tiers=tiers,
        payments=Payments(
            database, clock, devices.registry, core.site, processor or ManualProcessor(), core.settings.payments
        ),
    )
