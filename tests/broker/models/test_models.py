"""Models from their making to their end: training, restarts, devices that go, rules (reference 12.6)."""

from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any, Final

import pytest
import trio

from broker.accounts.tokens import Caller
from broker.devices.shares import ShareStatus
from broker.errors import Conflict
from broker.facts import SharesChanged
from broker.models.definition import ModelStatus, ModelType
from broker.models.learner import LearningNotInstalled
from broker.models.models import Model, RuleModel
from broker.models.training import next_training
from broker.services import Services
from storage.keys import Milliseconds, RuleKey
from storage.models import ModelRecord
from storage.transaction import Transaction
from tests.broker.models.worlds import TaughtLearner, send_wave
from tests.builders import ServicesOpener
from tests.factories import ADA, ADA_TOKEN, BOBS, HALL, KITCHEN, NOW_MS, World, build_world
from tests.fakes import FakeClock

DAY_MS: Final = 86_400_000
THREE: Final = NOW_MS // DAY_MS * DAY_MS + 3 * 3_600_000
TARGET: Final = {"did": KITCHEN, "field": "temperature"}
INPUT: Final = f"{KITCHEN}.temperature"


@pytest.fixture
def learner() -> TaughtLearner:
    return TaughtLearner()


@pytest.fixture
async def services(opener: ServicesOpener, learner: TaughtLearner) -> AsyncIterator[Services]:
    async with opener(learner=learner) as opened:
        yield opened


@pytest.fixture
async def ada(services: Services, world: World) -> Caller:
    return await services.accounts.tokens.caller(ADA_TOKEN)


def definition(*sources: Any, target: Any = TARGET, kind: str = "prediction") -> dict[str, Any]:
    parameters = {"sourceToPredict": target, "predictIn": 300}
    return {"data": {"sources": list(sources) or [TARGET]}, "type": kind, "parameters": parameters}


async def stored(services: Services, id_: str) -> ModelRecord:
    found = await services.core.database.read(lambda tx: tx.models.by_id(id_))
    assert found is not None
    return found


async def ended(services: Services, id_: str, status: ModelStatus) -> ModelRecord:
    with trio.fail_after(10):
        while (found := await stored(services, id_)).status != status:
            await trio.lowlevel.checkpoint()
    return found


async def ready(services: Services, ada: Caller, **members: Any) -> Model:
    """A model that was trained on 60 values."""
    await send_wave(services, KITCHEN, count=60)
    made = await services.models.models.create(ada, definition(**members))
    await ended(services, made.record.id, ModelStatus.READY)
    with trio.fail_after(10):
        while services.models.models.output(made.record.id, {INPUT: 1.0}) is None:
            await trio.lowlevel.checkpoint()
    return made


async def test_fewer_than_50_values_keep_a_model_training_and_more_make_it_ready(
    services: Services, ada: Caller, learner: TaughtLearner, fake_clock: FakeClock
) -> None:
    await send_wave(services, KITCHEN, count=49)
    made = await services.models.models.create(ada, definition())
    with trio.fail_after(10):
        while (await stored(services, made.record.id)).next_training_on == NOW_MS:
            await trio.lowlevel.checkpoint()
    assert (await stored(services, made.record.id)).status == ModelStatus.TRAINING
    assert learner.jobs == []
    with pytest.raises(Conflict, match="Model is not ready: is training"):
        services.models.models.predict(await services.models.models.find(ada, made.record.id), [])
    await send_wave(services, KITCHEN, count=1)
    fake_clock.advance(600_000)
    services.models.training.wake()
    record = await ended(services, made.record.id, ModelStatus.READY)
    assert (record.trained_on, record.next_training_on) == (NOW_MS + 600_000, next_training(NOW_MS))
    (job,) = learner.jobs
    assert (job.target, job.inputs, job.ahead_ms, len(job.series[INPUT])) == (INPUT, [INPUT], 300_000, 50)
    assert job.series[INPUT] == sorted(job.series[INPUT])
    model = await services.models.models.find(ada, made.record.id)
    answer = services.models.models.predict(model, [{"name": INPUT, "value": 21.5}])
    assert (answer.value, answer.confidence) == (21.5, 0.75)


async def test_a_model_says_that_values_are_too_large_to_learn_from(
    services: Services, ada: Caller, learner: TaughtLearner
) -> None:
    """It would wait for ever, and nobody would know why."""
    device = await services.devices.registry.find(KITCHEN)
    for number in range(60):
        payload = b'{"temperature":%d}' % (7 if number < 10 else -(10**16))
        services.messages.ingest.submit(device, payload, NOW_MS - (60 - number) * 60_000)
    await services.messages.ingest.wait_committed()
    made = await services.models.models.create(ada, definition())
    with trio.fail_after(10):
        while (await stored(services, made.record.id)).next_training_on == NOW_MS:
            await trio.lowlevel.checkpoint()
    expected = f"is training: 50 of 60 values of {INPUT} are beyond 1e+15, and nothing is learned from these"
    assert (await stored(services, made.record.id)).reason == expected
    with pytest.raises(Conflict, match="50 of 60 values"):
        services.models.models.predict(await services.models.models.find(ada, made.record.id), [])
    # As one of several sources, beside one with enough values.
    await send_wave(services, HALL, count=60)
    target = {"did": HALL, "field": "temperature"}
    other = await services.models.models.create(ada, definition(TARGET, target, target=target))
    record = await ended(services, other.record.id, ModelStatus.READY)
    assert record.reason == ""  # ten of the first source's values are learned from
    assert [len(one.series[INPUT]) for one in learner.jobs] == [10]


async def test_a_source_of_which_every_value_is_too_large_is_an_error_that_names_it(
    services: Services, ada: Caller, learner: TaughtLearner
) -> None:
    device = await services.devices.registry.find(KITCHEN)
    services.messages.ingest.submit(device, b'{"temperature":1e16}', NOW_MS - 60_000)
    await send_wave(services, HALL, count=60)
    target = {"did": HALL, "field": "temperature"}
    made = await services.models.models.create(ada, definition(TARGET, target, target=target))
    record = await ended(services, made.record.id, ModelStatus.ERROR)
    assert record.reason == f"1 of 1 values of {INPUT} are beyond 1e+15, and nothing is learned from these"
    assert learner.jobs == []


@pytest.mark.parametrize(
    ("now_ms", "expected"), [(THREE - 1, THREE), (THREE, THREE + DAY_MS), (THREE + 1, THREE + DAY_MS)]
)
def test_training_is_daily_at_three(now_ms: int, expected: int) -> None:
    assert next_training(now_ms) == expected


async def test_history_is_that_of_30_days_and_of_the_field(
    services: Services, ada: Caller, learner: TaughtLearner
) -> None:
    await send_wave(services, KITCHEN, count=5, end_ms=Milliseconds(NOW_MS - 30 * DAY_MS))
    await send_wave(services, KITCHEN, count=7, field="intensity")
    await send_wave(services, HALL, count=8)
    await ready(services, ada)
    (job,) = learner.jobs
    assert {name: len(values) for name, values in job.series.items()} == {INPUT: 60}


@pytest.mark.both_engines
async def test_a_long_history_is_read_in_pages_up_to_a_number(
    services: Services, ada: Caller, learner: TaughtLearner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.models.series._ROWS_AT_ONCE", 7)
    monkeypatch.setattr("broker.models.series.MODEL_VALUES_MAX", 53)
    await ready(services, ada)
    (job,) = learner.jobs
    times = [ts for ts, _ in job.series[INPUT]]
    assert times == [NOW_MS - number * 60_000 for number in range(53, 0, -1)]


async def test_a_training_that_fails_is_an_error_until_the_next_one(
    services: Services, ada: Caller, learner: TaughtLearner, fake_clock: FakeClock
) -> None:
    learner.failure = "the values cannot be learned from"
    await send_wave(services, KITCHEN, count=60)
    made = await services.models.models.create(ada, definition())
    failed = await ended(services, made.record.id, ModelStatus.ERROR)
    assert (failed.reason, failed.next_training_on) == (learner.failure, next_training(NOW_MS))
    learner.failure = ""
    fake_clock.now = failed.next_training_on
    services.models.training.wake()
    assert (await ended(services, made.record.id, ModelStatus.READY)).reason == ""


async def test_a_training_that_a_wrong_clock_put_off_is_due(
    services: Services, ada: Caller, learner: TaughtLearner, fake_clock: FakeClock
) -> None:
    made = await ready(services, ada)
    for now_ms in (NOW_MS + 400 * DAY_MS, NOW_MS):  # the clock jumps a year, and back
        before = (await stored(services, made.record.id)).next_training_on
        fake_clock.now = now_ms
        services.models.training.wake()
        with trio.fail_after(10):
            while (await stored(services, made.record.id)).next_training_on == before:
                await trio.lowlevel.checkpoint()
    assert (await stored(services, made.record.id)).next_training_on == next_training(NOW_MS)


@pytest.mark.both_engines
async def test_a_training_that_a_stop_ended_is_begun_again_and_what_was_learned_stays(
    opener: ServicesOpener, learner: TaughtLearner
) -> None:
    learner.may_end = trio.Event()
    async with opener(learner=learner) as services:
        await build_world(services.core.database, services.core.vault)
        ada = await services.accounts.tokens.caller(ADA_TOKEN)
        await send_wave(services, KITCHEN, count=60)
        id_ = (await services.models.models.create(ada, definition())).record.id
        with trio.fail_after(10):
            while not learner.jobs:
                await trio.lowlevel.checkpoint()
    learner.may_end.set()
    async with opener(learner=learner) as services:
        await ended(services, id_, ModelStatus.READY)
    assert len(learner.jobs) == 2
    async with opener(learner=learner) as services:
        assert services.models.models.output(id_, {INPUT: 3}) == 3.0
    assert len(learner.jobs) == 2


@pytest.mark.both_engines
async def test_a_model_of_a_deleted_device_answers_no_more(services: Services, ada: Caller) -> None:
    made = await ready(services, ada)
    await services.devices.inventory.delete(await services.devices.registry.find(KITCHEN))
    assert services.models.models.output(made.record.id, {INPUT: 1.0}) is None
    record = await ended(services, made.record.id, ModelStatus.ERROR)
    assert record.reason == f'Device "{KITCHEN}" does not exist'
    found = await services.models.models.find(ada, made.record.id)
    with pytest.raises(Conflict, match="does not exist"):
        services.models.models.predict(found, [])


async def test_a_model_of_a_device_that_is_no_longer_shared_answers_no_more(
    services: Services, world: World, ada: Caller, fake_clock: FakeClock
) -> None:
    device = await services.devices.registry.find(BOBS)
    share = await services.devices.shares.offer(device, uid=ADA)
    await services.devices.shares.answer(share.id, world.ada, ShareStatus.ACCEPTED)
    target = {"did": BOBS, "field": "temperature"}
    await send_wave(services, BOBS, count=60)
    id_ = (await services.models.models.create(ada, definition(target, target=target))).record.id
    await ended(services, id_, ModelStatus.READY)
    await services.devices.shares.remove(share.id)
    record = await ended(services, id_, ModelStatus.ERROR)
    assert record.reason == f'Device "{BOBS}" is no longer shared'
    fake_clock.now = record.next_training_on
    services.models.training.wake()
    with trio.fail_after(10):
        while (again := await stored(services, id_)).next_training_on == record.next_training_on:
            await trio.lowlevel.checkpoint()
    assert again.status == ModelStatus.ERROR


async def test_a_change_of_shares_that_takes_nothing_away_leaves_a_model_ready(
    services: Services, world: World, ada: Caller
) -> None:
    made = await ready(services, ada)
    services.core.router.publish(SharesChanged(world.kitchen))
    with trio.fail_after(10):
        while services.models.models.output(made.record.id, {INPUT: 1.0}) is None:
            await trio.lowlevel.checkpoint()
    assert (await stored(services, made.record.id)).status == ModelStatus.READY


@pytest.mark.both_engines
async def test_a_model_that_is_deleted_in_its_training_does_not_come_back(
    services: Services, ada: Caller, learner: TaughtLearner
) -> None:
    learner.may_end = trio.Event()
    await send_wave(services, KITCHEN, count=60)
    made = await services.models.models.create(ada, definition())
    with trio.fail_after(10):
        while not learner.jobs:
            await trio.lowlevel.checkpoint()
    await services.models.models.remove(made)
    learner.may_end.set()
    other = await services.models.models.create(ada, definition())
    await ended(services, other.record.id, ModelStatus.READY)
    assert services.models.models.output(made.record.id, {INPUT: 1.0}) is None
    assert await services.core.database.read(lambda tx: tx.models.by_id(made.record.id)) is None


async def test_without_the_library_nothing_is_made(services: Services, ada: Caller, learner: TaughtLearner) -> None:
    learner.is_installed = False
    with pytest.raises(LearningNotInstalled, match="can install the extra learning"):
        await services.models.models.create(ada, definition())


async def test_an_anomaly_is_told_apart_by_its_sensitivity(services: Services, ada: Caller) -> None:
    """The taught model expects 0 with a deviation of 2: at 50, up to 7 is usual; at 100, up to 2."""
    made = await ready(services, ada, kind="anomalyDetectionUsingPrediction")
    model = await services.models.models.find(ada, made.record.id)
    assert [one.name for one in model.outputs] == ["anomaly"]
    for value, expected in ((6.9, False), (7.1, True), (-7.1, True)):
        assert services.models.models.predict(model, [{"name": INPUT, "value": value}]).value is expected
        assert services.models.models.output(made.record.id, {INPUT: value}) is expected


def create(services: Services, world: World, rule: RuleKey, wanted: Sequence[RuleModel], tx: Transaction) -> None:
    services.models.models.create_for_rule(tx, rule, world.ada, world.application, wanted)


class TestModelsOfRules:
    @pytest.mark.both_engines
    @pytest.mark.parametrize(
        ("kind", "outputs"), [(ModelType.PREDICTION, (7.5, 1.0)), (ModelType.ANOMALY, (True, False))]
    )
    async def test_a_rule_has_a_model_for_each_condition_and_device(
        self, services: Services, world: World, kind: ModelType, outputs: tuple[object, object]
    ) -> None:
        models = services.models.models
        kitchen, hall = [await services.devices.registry.find(did) for did in (KITCHEN, HALL)]
        await send_wave(services, KITCHEN, count=60)
        wanted = [RuleModel(0, one, "temperature", kind, 60, 50) for one in (kitchen, hall)]
        for some in (wanted[:1], wanted, wanted):  # a model that a rule has is not made again
            await services.core.database.write(partial(create, services, world, RuleKey(7), some))
        of_kitchen, of_hall = await services.core.database.read(lambda tx: tx.models.of_rule(7))
        await ended(services, of_kitchen.id, ModelStatus.READY)
        with trio.fail_after(10):
            while models.output_for_rule(7, 0, world.kitchen, 1.0) is None:
                await trio.lowlevel.checkpoint()
        assert tuple(models.output_for_rule(7, 0, world.kitchen, value) for value in (7.5, 1.0)) == outputs
        assert models.output_for_rule(7, 0, world.hall, 1.0) is None  # it has too few values
        assert models.output_for_rule(7, 1, world.kitchen, 1.0) is None
        assert models.waiting(of_kitchen.id, 7, 0, world.kitchen) is None
        assert models.waiting(of_hall.id, 7, 0, world.hall) == "is training"
        await services.core.database.write(lambda tx: models.delete_for_rule(tx, RuleKey(7)))
        with trio.fail_after(10):
            while models.output_for_rule(7, 0, world.kitchen, 1.0) is not None:
                await trio.lowlevel.checkpoint()
        assert await services.core.database.read(lambda tx: tx.models.of_user(world.ada)) == []

    async def test_a_model_of_a_rule_goes_with_its_rule_only(
        self, services: Services, world: World, ada: Caller, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        models, kitchen = services.models.models, await services.devices.registry.find(KITCHEN)
        wanted = [RuleModel(0, kitchen, "temperature", ModelType.PREDICTION, 60)]
        await services.core.database.write(partial(create, services, world, RuleKey(7), wanted))
        (record,) = await services.core.database.read(lambda tx: tx.models.of_rule(7))
        with pytest.raises(Conflict, match="belongs to a rule"):
            await models.remove(await models.find(ada, record.id))
        monkeypatch.setattr("broker.models.models.MODELS_OF_RULES", 1)
        with pytest.raises(Conflict, match="at most"):
            await services.core.database.write(partial(create, services, world, RuleKey(8), wanted))
