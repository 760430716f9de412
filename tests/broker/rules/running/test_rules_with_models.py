"""A condition with a `transformer`: its model comes and goes with the rule, and decides once it is ready."""

import json
from collections.abc import AsyncIterator

import pytest
from trio.testing import wait_all_tasks_blocked

from broker.devices.inventory import NewDevice
from broker.models.models import TOO_MANY_OF_RULES
from broker.rules.rulebook import NewRule, RuleChanges
from broker.services import Services
from storage.keys import Milliseconds
from storage.models import ModelRecord
from tests.broker.models.worlds import TaughtLearner, send_wave
from tests.broker.rules.home import Home, body, when
from tests.builders import ServicesOpener
from tests.factories import ADA, ADA_TOKEN, KITCHEN, LIGHT_TYPE, NOW_MS, build_world

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
    (warning,) = (await home.status(rule)).warnings
    (model,) = await models(home.services)
    assert (warning.model_id, len(warning.messages)) == (model.id, 1)


async def test_the_first_answer_names_the_model(home: Home) -> None:
    """The commit of the rule is told before the trainer has read its model."""
    ada = await home.services.accounts.users.find(ADA)
    caller = await home.services.accounts.tokens.caller(ADA_TOKEN)
    new = NewRule("Rule", json.dumps(body([when("temperature", ">", 25, **SOON)])).encode())
    made = await home.services.rules.rulebook.create(caller, ada, new)
    (warning,) = (await home.services.rules.statuses.status(made)).warnings
    (model,) = await models(home.services)
    assert warning.model_id == model.id


async def test_a_ready_model_decides(home: Home) -> None:
    await send_wave(home.services, KITCHEN, count=60)
    rule = await home.rule(body([when("temperature", ">", 25, **SOON)]))
    await wait_all_tasks_blocked()
    assert (await home.status(rule)).warnings == []
    await home.says({"temperature": 20})
    assert await home.count() == 0
    await home.says({"temperature": 30})
    assert await home.count() == 1


@pytest.mark.both_engines
async def test_a_model_goes_with_its_rule_or_its_body(home: Home) -> None:
    rule = await home.rule(body([when("temperature", ">", 25, **SOON)]))
    (before,) = await models(home.services)
    await home.change(rule, RuleChanges(name="Other"))
    assert [one.id for one in await models(home.services)] == [before.id]
    changed = rule.body.replace("300", "600").encode()
    rule = await home.change(rule, RuleChanges(body=changed))
    (after,) = await models(home.services)
    assert after.id != before.id
    await home.services.rules.rulebook.remove(rule)
    assert await models(home.services) == []


@pytest.mark.both_engines
async def test_each_device_of_a_type_has_a_model_also_one_that_comes_later(home: Home) -> None:
    services = home.services
    any_light = {"selector": "any", "dtid": LIGHT_TYPE}
    rule = await home.rule(body([when("temperature", ">", 25, any_light, **SOON)]))
    assert len(await models(services)) == 2
    kitchen = await services.devices.registry.find(KITCHEN)
    later = await services.devices.inventory.create(NewDevice(owner=kitchen.owner, type=kitchen.type))
    await wait_all_tasks_blocked()
    (model,) = [one for one in await models(services) if later.id in one.definition]
    assert (model.rule, len(await models(services))) == (rule.key, 3)
    await services.devices.inventory.delete(later)
    await wait_all_tasks_blocked()
    assert len(await models(services)) == 2


@pytest.mark.both_engines
async def test_a_later_device_beyond_the_number_of_models_is_a_problem_of_the_rule(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.models.models.MODELS_OF_RULES", 2)
    rule = await home.rule(body([when("temperature", ">", 25, {"selector": "any", "dtid": LIGHT_TYPE}, **SOON)]))
    kitchen = await home.services.devices.registry.find(KITCHEN)
    await home.services.devices.inventory.create(NewDevice(owner=kitchen.owner, type=kitchen.type))
    await wait_all_tasks_blocked()
    assert [one.text for one in (await home.status(rule)).problems] == [TOO_MANY_OF_RULES]


@pytest.mark.both_engines
async def test_an_explanation_and_a_replay_ask_the_model_as_it_is_now(home: Home) -> None:
    await send_wave(home.services, KITCHEN, count=60)
    cold = await home.says({"temperature": 20})
    rule = await home.rule(body([when("temperature", ">", 25, **SOON)]), enabled=False)
    await wait_all_tasks_blocked()
    hot = await home.says({"temperature": 30})
    rules = home.services.rules
    compiled = await rules.names.compiled(rule)
    for mid, triggers, said in ((cold, False, 20), (hot, True, 30)):
        why = await rules.explainer.of_message(rule, compiled, mid)
        (condition,) = why.conditions
        assert (why.triggers, condition.report.output) == (triggers, said)
        assert f"the model, as it is now, says {said}" in condition.sentence
    replayed = await rules.replays.run(compiled, Milliseconds(NOW_MS), Milliseconds(NOW_MS))
    assert (replayed.messages, replayed.triggered, replayed.asks_models) == (2, 1, True)
