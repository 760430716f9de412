"""`[[plans]]` of the provision file: an operator's own plans are approved at once (reference 26)."""

from typing import Any

import pytest

from broker.errors import ValidationFailed
from broker.services import Services
from tests.factories import LIGHT_TYPE, World
from tests.rows import each_row

PLAN = {"device_type": "example.smart_light", "free_messages_per_day": 150, "paid_cost": "2.99"}


async def provision(services: Services, **changes: Any) -> tuple[int, int, int]:
    report = await services.provisioning.apply({"plans": [PLAN | changes]})
    counts = report.tables["plans"]
    return counts.created, counts.changed, counts.unchanged


async def terms(services: Services, world: World) -> list[tuple[int, str, list[tuple[str, str, int]]]]:
    def work(tx: Any) -> list[tuple[int, str, list[tuple[str, str, int]]]]:
        return [
            (plan.version, plan.status, [(t.type, t.cost, t.message_limit) for t in tx.monetization.tiers(plan.key)])
            for plan in tx.monetization.plans(world.light_type)
        ]

    return await services.core.database.read(work)


@pytest.mark.both_engines
async def test_a_plan_is_approved_at_once_and_repeating_it_changes_nothing(services: Services, world: World) -> None:
    assert await provision(services) == (1, 0, 0)
    assert await provision(services) == (0, 0, 1)
    assert await terms(services, world) == [(1, "APPROVED", [("free", "0.00", 150), ("paid", "2.99", -1)])]


async def test_other_terms_are_the_next_version(services: Services, world: World) -> None:
    await provision(services)
    assert await provision(services, paid_cost="4.99") == (0, 1, 0)
    assert [(version, tiers[1][1]) for version, _, tiers in await terms(services, world)] == [(2, "4.99"), (1, "2.99")]


@pytest.mark.both_engines
async def test_another_spelling_of_the_same_price_is_the_same_plan(services: Services, world: World) -> None:
    await provision(services, paid_cost="3.00")
    assert await provision(services, paid_cost="3") == (0, 0, 1)


async def test_without_a_price_there_is_only_the_free_tier(services: Services, world: World) -> None:
    assert await provision(services, paid_cost=None) == (1, 0, 0)
    assert [tiers for *_, tiers in await terms(services, world)] == [[("free", "0.00", 150)]]


BAD: list[tuple[dict[str, Any], str]] = [
    ({"device_type": "example.none"}, "plans[0].device_type"),
    ({"free_messages_per_day": 0}, "plans[0].free_messages_per_day"),
    ({"free_messages_per_day": "150"}, "plans[0].free_messages_per_day"),
    ({"paid_cost": "0"}, "plans[0].paid_cost"),
    ({"paid_cost": "2.999"}, "plans[0].paid_cost"),
    ({"paid_cost": "-1"}, "plans[0].paid_cost"),
    ({"paid_cost": 2.99}, "plans[0].paid_cost"),
    ({"price": "2.99"}, "plans[0].price"),
]


@each_row(("changes", "field"), BAD)
async def test_findings_name_the_wrong_member(
    services: Services, world: World, changes: dict[str, Any], field: str
) -> None:
    with pytest.raises(ValidationFailed) as failed:
        await provision(services, **changes)
    assert failed.value.findings[0].field == field
    assert await terms(services, world) == []


@pytest.mark.both_engines
async def test_two_plans_for_one_type_are_refused(services: Services, world: World) -> None:
    with pytest.raises(ValidationFailed):
        await services.provisioning.apply({"plans": [PLAN, PLAN | {"device_type": LIGHT_TYPE}]})
    assert await terms(services, world) == []
