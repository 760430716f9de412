"""The engine follows the log: what triggers, once, also after a restart."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from typing import Any, Final

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.clock import Clock
from broker.errors import Conflict
from broker.rules.rulebook import RuleChanges
from broker.rules.running.engine import EngineStatistics
from broker.services import Services
from config.limits import RULE_LOOP_SECONDS, RULE_LOOP_TRIGGERS
from storage.database import Database
from storage.keys import Milliseconds
from storage.rules import RuleRecord, RuleStore
from storage.transaction import Transaction
from tests.broker.device_management.devices import mock_time
from tests.broker.rules.home import HALL_ID, ON, Home, body, when
from tests.builders import ServicesOpener
from tests.factories import BOBS, HALL, KITCHEN, LIGHT_TYPE, NOW_MS, build_world
from tests.fakes import BreakableEngine

pytestmark = pytest.mark.slow


MINUTE = {"value": 60, "acceptUpdate": True}


@pytest.fixture
async def services(opener: ServicesOpener) -> AsyncIterator[Services]:
    async with opener(clock=mock_time()) as opened:
        await build_world(opened.core.database, opened.core.vault)
        yield opened


@pytest.fixture
async def home(services: Services) -> Home:
    return Home(services)


async def test_a_message_that_meets_the_conditions_sends_the_actions(home: Home) -> None:
    await home.rule(body([when("temperature", ">", 25)]))

    await home.says({"temperature": 20})
    assert await home.count() == 0

    await home.says({"temperature": 30})
    (action,) = await home.actions()
    assert action.data == '{"actions":[{"name":"setOn","parameters":{}}]}'
    assert action.source == action.device


async def test_a_rule_looks_at_the_last_values_of_all_devices_that_it_names(home: Home) -> None:
    await home.says({"state": True}, HALL)
    await home.rule(body([when("temperature", ">", 25), when("state", "=", value=True, device=HALL)]))

    await home.says({"temperature": 30})
    assert await home.count() == 1
    await home.says({"state": False}, HALL)
    await home.says({"temperature": 31})
    assert await home.count() == 1


async def test_messages_from_before_a_rule_do_not_trigger_it(home: Home) -> None:
    await home.says({"temperature": 30})
    await home.rule(body([when("temperature", ">", 25)]))
    await wait_all_tasks_blocked()
    assert await home.count() == 0


async def test_a_late_message_does_not_bring_back_an_old_value(home: Home) -> None:
    await home.rule(body([when("temperature", ">", 25)]))
    await home.says({"temperature": 20})
    await home.says({"temperature": 30}, ts=NOW_MS - 60_000)
    assert await home.count() == 0


async def test_any_and_matched_send_to_the_device_of_the_message(home: Home) -> None:
    any_light = {"selector": "any", "dtid": LIGHT_TYPE}
    await home.rule(
        body([when("temperature", ">", 25, any_light)], {"ddid": {"selector": "matched", "dtid": LIGHT_TYPE}, **ON})
    )
    await home.says({"temperature": 30}, HALL)
    await home.says({"temperature": 30}, BOBS)  # not Ada's
    hall = await home.services.devices.registry.find(HALL)
    assert [one.device for one in await home.actions()] == [hall.key]


async def test_every_counts_devices_that_are_made_and_deleted(home: Home) -> None:
    every = {"selector": "every", "dtid": LIGHT_TYPE}
    await home.rule(body([when("state", "=", value=True, device=every)]))
    await home.says({"state": True})
    assert await home.count() == 0
    await home.says({"state": True}, HALL)
    assert await home.count() == 1
    hall = await home.services.devices.registry.find(HALL)
    await home.services.devices.inventory.delete(hall)
    await wait_all_tasks_blocked()
    await home.says({"state": True})
    assert await home.count() == 1  # the hall was the destination, too: the rule is not valid any more


async def test_a_duration_triggers_once_when_it_elapses(home: Home, autojump_clock: MockClock) -> None:
    await home.rule(body([when("state", "=", value=False, duration=MINUTE)]))
    await home.says({"state": False})
    await trio.sleep(59)
    assert await home.count() == 0
    await trio.sleep(2)
    assert await home.count() == 1
    await trio.sleep(300)
    assert await home.count() == 1


async def test_a_duration_ends_with_its_condition(home: Home, autojump_clock: MockClock) -> None:
    await home.rule(body([when("state", "=", value=False, duration=MINUTE)]))
    await home.says({"state": False})
    await trio.sleep(59)
    await home.says({"state": True})
    await trio.sleep(120)
    assert await home.count() == 0


async def test_a_running_duration_survives_a_restart(opener: ServicesOpener, autojump_clock: MockClock) -> None:
    async with opener(clock=mock_time()) as services:
        await build_world(services.core.database, services.core.vault)
        home = Home(services)
        await home.rule(body([when("state", "=", value=False, duration=MINUTE)]))
        await home.says({"state": False})
        await trio.sleep(30)
    await trio.sleep(10)
    async with opener(clock=mock_time()) as services:
        await trio.sleep(19)
        assert await Home(services).count() == 0
        await trio.sleep(2)
        assert await Home(services).count() == 1
    async with opener(clock=mock_time()) as services:
        await trio.sleep(100)
        assert await Home(services).count() == 1


class SetBack:
    """A wall clock that moves with trio's clock, and can be set."""

    def __init__(self) -> None:
        self.ahead_ms = 0

    @property
    def clock(self) -> Clock:
        right = mock_time()
        return Clock(lambda: Milliseconds(right.now_ms() + self.ahead_ms), right.steady_ms)


EACH_MINUTE = {"if": {"field": "datetime", "operator": "=", "operand": {"value": "* * * * * *"}}}


@pytest.mark.parametrize("restart", [False, True])
async def test_a_clock_that_was_a_year_ahead_stops_no_duration_and_no_schedule(
    opener: ServicesOpener, autojump_clock: MockClock, *, restart: bool
) -> None:
    wall = SetBack()
    wall.ahead_ms = 365 * 86_400_000
    async with AsyncExitStack() as stack:
        services = await stack.enter_async_context(opener(clock=wall.clock))
        await build_world(services.core.database, services.core.vault)
        home = Home(services)
        scheduled = await home.rule(EACH_MINUTE | {"then": {"ddid": HALL_ID, **ON}}, name="each minute")
        lasting = await home.rule(body([when("state", "=", value=False, duration=MINUTE)]), name="lasting")
        await home.says({"state": False})
        await trio.sleep(30)
        wall.ahead_ms = 0
        if restart:
            await stack.aclose()
            services = await stack.enter_async_context(opener(clock=wall.clock))
        await trio.sleep(155)  # the clock is looked at twice a minute
        triggered = [await Home(services).triggered(rule) for rule in (scheduled, lasting)]
        assert triggered[0] >= 2
        assert triggered[1] == 1


async def test_a_clock_that_was_ahead_makes_no_loop_and_no_lasting_value(
    opener: ServicesOpener, autojump_clock: MockClock
) -> None:
    wall = SetBack()
    wall.ahead_ms = 3_600_000
    async with opener(clock=wall.clock) as services:
        await build_world(services.core.database, services.core.vault)
        home = Home(services)
        to_itself = {"ddid": KITCHEN, **ON}
        rule = await home.rule(body([when("temperature", ">", 25)], to_itself))
        await home.says({"temperature": 30})
        wall.ahead_ms = 0
        await home.says({"temperature": 20})
        for _ in range(RULE_LOOP_TRIGGERS + 2):
            await trio.sleep(RULE_LOOP_SECONDS + 1)
            await home.says({"temperature": 30})
            await home.says({"temperature": 20})
        assert await home.triggered(rule) == RULE_LOOP_TRIGGERS + 3


async def test_a_change_of_one_rule_resets_no_other_rules_timer(home: Home, autojump_clock: MockClock) -> None:
    await home.rule(body([when("state", "=", value=False, duration=MINUTE)]), name="first")
    second = await home.rule(body([when("state", "=", value=False, duration=MINUTE)]), name="second")
    await home.says({"state": False})
    await trio.sleep(30)
    await home.change(second, RuleChanges(body=b"%s" % second.body.replace("60", "70").encode()))
    await trio.sleep(31)
    assert await home.count() == 1  # the first; the second has restarted
    await trio.sleep(300)
    assert await home.count() == 1


async def test_a_new_name_does_not_reset_a_rules_own_timer(home: Home, autojump_clock: MockClock) -> None:
    rule = await home.rule(body([when("state", "=", value=False, duration=MINUTE)]))
    await home.says({"state": False})
    await trio.sleep(30)
    await home.change(rule, RuleChanges(name="Other"))
    await trio.sleep(31)
    assert await home.count() == 1


async def test_a_rule_that_is_not_enabled_or_was_removed_triggers_nothing(home: Home) -> None:
    disabled = await home.rule(body([when("temperature", ">", 25)]), enabled=False)
    removed = await home.rule(body([when("temperature", ">", 25)]))
    await home.services.rules.rulebook.remove(removed)
    await home.says({"temperature": 30})
    assert await home.count() == 0
    await home.change(disabled, RuleChanges(enabled=True))
    await home.says({"temperature": 30})
    assert await home.count() == 1


async def test_a_minute_triggers_once_also_over_a_restart(opener: ServicesOpener, autojump_clock: MockClock) -> None:
    async with opener(clock=mock_time()) as services:
        await build_world(services.core.database, services.core.vault)
        await Home(services).rule(EACH_MINUTE | {"then": {"ddid": HALL_ID, **ON}})
        await trio.sleep(125)
        minutes = (NOW_MS + 125_000) // 60_000 - NOW_MS // 60_000
        assert await Home(services).count() == minutes
    async with opener(clock=mock_time()) as services:
        await wait_all_tasks_blocked()
        assert await Home(services).count() == minutes
        await trio.sleep(60)
        assert await Home(services).count() == minutes + 1
    await trio.sleep(3600)
    async with opener(clock=mock_time()) as services:  # never for the past
        await wait_all_tasks_blocked()
        assert await Home(services).count() <= minutes + 2


async def test_rows_beyond_the_queue_are_read_from_the_log(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.rules.running.engine.RULE_LOG_ROWS", 10)
    await home.rule(body([when("temperature", ">", 25)]))
    ingest = home.services.messages.ingest
    kitchen = await home.services.devices.registry.find(KITCHEN)
    for number in range(700):
        ingest.submit(kitchen, b'{"temperature":%d}' % (20 + number % 10))
    await ingest.wait_committed()
    await wait_all_tasks_blocked()
    assert await home.count() == 280  # four of ten: 26 to 29


@pytest.mark.both_engines
async def test_after_a_failed_commit_nothing_is_missing_and_nothing_comes_twice(
    opener: ServicesOpener, engine: object, autojump_clock: MockClock
) -> None:
    breakable = BreakableEngine(engine)  # type: ignore[arg-type]
    async with opener(clock=mock_time(), engine=breakable) as services:
        await build_world(services.core.database, services.core.vault)
        home = Home(services)
        await home.rule(body([when("temperature", ">", 25)]))
        await home.says({"temperature": 30})
        kitchen = await services.devices.registry.find(KITCHEN)
        services.messages.ingest.submit(kitchen, b'{"temperature":31}')
        services.messages.ingest.after_commit(lambda _: setattr(breakable, "error", OSError("disk full")))
        await wait_all_tasks_blocked()
        assert await home.count() == 1
        breakable.error = None
        await trio.sleep(10)
        assert await home.count() == 2
        rule = (await services.core.database.read(lambda tx: tx.rules.rules_after(0, limit=1)))[0]  # type: ignore[arg-type]
        assert (await home.status(rule)).triggered == 2


async def test_values_are_exact_when_the_snapshots_are_ahead(opener: ServicesOpener) -> None:
    """A value of the rule is that at its place in the log, not the newest one that the store has."""
    async with opener() as services:
        await build_world(services.core.database, services.core.vault)
        home = Home(services)
        await home.says({"state": True}, HALL)
        await home.rule(body([when("temperature", ">", 25), when("state", "=", value=True, device=HALL)]))
        before = await services.core.database.read(lambda tx: tx.messages.head())
        await home.says({"temperature": 30})
        await home.says({"state": False}, HALL)
        assert await home.count() == 1
        await services.messages.projector.flush()
    async with opener() as services:
        # As after a crash before the rules' position was saved.
        await services.core.database.write(lambda tx: tx.messages.set_consumer_position("rules", before))
    async with opener() as services:
        await wait_all_tasks_blocked()
        assert await Home(services).count() == 2


async def test_two_changes_at_once_are_both_kept_or_one_is_refused(home: Home) -> None:
    rule = await home.rule(body([when("temperature", ">", 25)]))
    await home.change(rule, RuleChanges(name="Other"))
    changed = await home.change(rule, RuleChanges(description="With the record from before"))
    assert (changed.name, changed.description) == ("Other", "With the record from before")
    await home.change(rule, RuleChanges(body=rule.body.replace("25", "26").encode()))
    with pytest.raises(Conflict):
        await home.change(rule, RuleChanges(name="Checked with the body from before"))


_COPIES: Final = 150


@pytest.mark.both_engines
async def test_a_start_reads_many_rules_and_their_devices_at_once(
    opener: ServicesOpener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read for each would be many seconds of a start over PostgreSQL with 10,000 rules."""
    async with opener() as services:
        await build_world(services.core.database, services.core.vault)
        rule = await Home(services).rule(body(when("temperature", ">", 90)))

        def copy(tx: Transaction) -> None:
            for key in range(1_001, 1_001 + _COPIES):
                id_ = f"{key:032x}"
                _copied(tx, "device", {"key": key, "id": id_}, KITCHEN)
                _copied(tx, "rule", {"key": key, "id": id_, "body": rule.body.replace(KITCHEN, id_)}, rule.id)

        await services.core.database.write(copy)
    reads, statements = 0, 0
    read, with_key = Database.read, RuleStore.rule

    async def counted_read(self: Database, work: Any, **more: Any) -> Any:
        nonlocal reads
        reads += 1
        return await read(self, work, **more)

    def counted_rule(self: RuleStore, rule_id: str) -> RuleRecord | None:
        nonlocal statements
        statements += 1
        return with_key(self, rule_id)

    monkeypatch.setattr(Database, "read", counted_read)
    monkeypatch.setattr(RuleStore, "rule", counted_rule)
    async with opener() as services:
        (running,) = [one for name, one in services.core.life.statistics().items() if name == "rules"]
        assert isinstance(running, EngineStatistics)
        assert running.rules == _COPIES + 1
    assert reads < _COPIES
    assert not statements


def _copied(tx: Transaction, table: str, values: Mapping[str, object], like: str) -> None:
    """Insert a row like the one with this id, except for some values."""
    row = tx.connection.execute(f"SELECT * FROM {table} WHERE id = :like", {"like": like}).one()  # noqa: S608 - constants
    assert row is not None
    made = {**row, **values}
    tx.connection.insert_many(table, list(made), [list(made.values())])
