"""Daily usage of an organization (reference 27.21)."""

import pytest

from broker.cluster.leases import Lease, LeaseName
from broker.limits.usage_days import KEPT_DAYS, UsageDays
from broker.services import Services
from storage.keys import OrganizationKey
from tests.factories import World
from tests.fakes import FakeClock

DAY_MS = 86_400_000
ACME = OrganizationKey(1)


@pytest.mark.both_engines
async def test_a_day_is_what_was_used_since_the_day_before(
    services: Services, world: World, fake_clock: FakeClock
) -> None:
    """A month begins with nothing; what is older than 400 days is forgotten."""
    database, days = services.core.database, services.limits.usage_days
    fresh = UsageDays(database, Lease(LeaseName.UPKEEP), services.core.clock, services.limits.quotas)
    for units in (3, 4, 0):
        for _ in range(units):
            services.limits.quotas.of_organization(ACME)
            services.limits.quotas._organizations[ACME].use(1)
        await days.note()
        fake_clock.advance(DAY_MS)
    found = [one.units for one in await fresh.of(ACME)]
    assert len(found) == 31
    assert sum(found) == 7
    assert found[-4:] == [3, 4, 0, 0]
    fake_clock.advance((KEPT_DAYS + 1) * DAY_MS)
    await days.note()
    assert await database.read(lambda tx: tx.limits.usage(ACME, since_ms=0)) == []
