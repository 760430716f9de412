"""A condition with a `transformer`: its model comes and goes with the rule, and decides once it is ready."""

from collections.abc import AsyncIterator

import pytest
from trio.testing import wait_all_tasks_blocked

from broker.rules.rulebook import RuleChanges
from broker.services import Services
from storage.models import ModelRecord
from tests.broker.models.worlds import TaughtLearner, send_wave
from tests.broker.rules.home import Home, body, when
from tests.builders import ServicesOpener
from tests.factories import ADA, KITCHEN, build_world

SOON = {"transformer": {"type": "prediction", "parameters": {"predictIn": 300}}}


@pytest.fixture
async def services(opener: ServicesOpener) -> AsyncIterator[Services]:
    async with opener(learner=TaughtLearner()) as opened:
        await build_world(opened.core.database, opened.core.vault)
        yield opened


@pytest.fixture
async def home(services: Services) -> Home:
    return Home(services)


async def models(services: Services) -> list[ModelRecord]:
    ada = await services.accounts.users.find(ADA)
    return await services.core.database.read(lambda tx: tx.models.of_user(ada.key))


async def test_a_condition_waits_for_its_model(home: Home) -> None:
    rule = await home.rule(body([when("temperature", ">", 25, **SOON)]))
    await home.says({"temperature": 30})
    assert await home.count() == 0
    (warning,) = (await home.standing(rule)).warnings
    (model,) = await models(home.services)
    assert (warning.model_id, len(warning.messages)) == (model.id, 1)


async def test_a_ready_model_decides(home: Home) -> None:
    await send_wave(home.services, KITCHEN, count=60)
    rule = await home.rule(body([when("temperature", ">", 25, **SOON)]))
    await wait_all_tasks_blocked()
    assert (await home.standing(rule)).warnings == []
    await home.says({"temperature": 20})
    assert await home.count() == 0
    await home.says({"temperature": 30})
    assert await home.count() == 1


async def test_a_model_goes_with_its_rule_or_its_body(home: Home) -> None:
    rule = await home.rule(body([when("temperature", ">", 25, **SOON)]))
    (before,) = await models(home.services)
    await home.services.rules.rulebook.change(rule, RuleChanges(name="Other"))
    assert [one.id for one in await models(home.services)] == [before.id]
    changed = rule.body.replace("300", "600").encode()
    rule = await home.services.rules.rulebook.change(rule, RuleChanges(body=changed))
    (after,) = await models(home.services)
    assert after.id != before.id
    await home.services.rules.rulebook.remove(rule)
    assert await models(home.services) == []
