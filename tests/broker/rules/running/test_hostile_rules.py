"""One user's rules cannot harm others: floods, processor time, new budgets (reference 12.4 and 12.9)."""

import threading
from collections.abc import AsyncIterator, Callable

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from broker.errors import Conflict
from broker.facts import RuleReported
from broker.rules.explaining.simulation import TOO_LONG, TOO_MANY_AT_ONCE, Budget, SimulationSlots, TookTooLongError
from broker.rules.explaining.status import RunState
from broker.rules.running.guards import ActionBudget, CostGuard
from broker.rules.sending.requests import REQUEST_RATE, HttpContent
from broker.services import Services
from storage.database import Database
from storage.engines.sqlite import SqliteEngine
from storage.keys import Milliseconds, RuleKey, UserKey
from storage.records import GrantRecord
from storage.transaction import Transaction
from tests.broker.rules.home import ON, Home, body, when
from tests.builders import ServicesOpener
from tests.factories import HALL, KITCHEN, LIGHT_TYPE, NOW_MS, World, allow, build_world
from tests.fakes import FakeClock

WARM = when("temperature", ">", 25)
EVERY = {"selector": "every", "dtid": LIGHT_TYPE}
CALL = {"action": "httpRequest", "parameters": {"method": {"value": "POST"}, "url": {"value": "https://example.org/"}}}
ALL_ON = {"ddid": EVERY, **ON}


class Requests:
    def __init__(self) -> None:
        self.sent = 0

    async def send(self, _request: HttpContent) -> int:
        await trio.lowlevel.checkpoint()
        self.sent += 1
        return 200


@pytest.fixture
def requests() -> Requests:
    return Requests()


@pytest.fixture
async def services(opener: ServicesOpener, requests: Requests) -> AsyncIterator[Services]:
    async with opener(rule_requests=requests) as opened:
        yield opened


@pytest.fixture
async def world(services: Services) -> World:
    return await build_world(services.core.database, services.core.vault)


@pytest.fixture
async def home(services: Services, world: World) -> Home:
    return Home(services)


async def test_a_rule_that_is_made_anew_has_no_new_budget_of_requests(home: Home, requests: Requests) -> None:
    for _ in range(REQUEST_RATE.minute + 2):
        rule = await home.rule(body([WARM], CALL))
        await home.says({"temperature": 30})
        await home.services.rules.rulebook.remove(rule)
    assert requests.sent == REQUEST_RATE.minute


async def test_a_rule_sends_a_bounded_number_of_messages_at_once(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.rules.language.actions.RULE_ACTION_MESSAGES", 3)
    rule = await home.rule(body([WARM], ALL_ON, ALL_ON))  # two lights each
    await home.says({"temperature": 30})
    assert await home.count() == 3
    (problem,) = (await home.status(rule)).problems
    assert (problem.field, problem.text) == ("rule.then.1", "Not sent: more than 1000 messages at once")


async def test_the_rules_of_a_user_send_a_bounded_number_of_actions_a_minute(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.rules.running.guards.RULE_ACTIONS_A_MINUTE", 3)
    rules = [await home.rule(body([WARM], ALL_ON), f"Rule {number}") for number in range(3)]
    await home.says({"temperature": 30})
    assert await home.count() == 4  # the second rule was within the budget when it triggered
    run_state = [(await home.status(rule)).run_state for rule in rules]
    assert run_state == [RunState.RUNNING, RunState.RUNNING, RunState.FAILING]


def test_a_budget_of_actions_is_of_one_user_and_one_minute() -> None:
    budget, ada, bob = ActionBudget(), UserKey(1), UserKey(2)
    assert not budget.is_spent(ada, Milliseconds(0))
    budget.spend(ada, 60_000)
    assert [budget.is_spent(one, Milliseconds(59_999)) for one in (ada, bob)] == [True, False]
    assert not budget.is_spent(ada, Milliseconds(60_000))


def test_the_costliest_rule_of_a_user_is_stopped_and_cheap_evaluations_stop_none() -> None:
    guard, ada, bob = CostGuard(), UserKey(1), UserKey(2)
    cheap, dear, other = RuleKey(1), RuleKey(2), RuleKey(3)
    assert guard.charge(ada, dear, 29.0, 0.0) is None
    assert guard.charge(bob, other, 2.0, 1.0) is None
    assert guard.charge(ada, cheap, 1.5, 2.0) == dear
    assert guard.charge(ada, cheap, 28.0, 3.0) is None
    assert guard.charge(ada, other, 2.0, 4.0) == cheap
    assert guard.charge(ada, cheap, 29.0, 5.0) is cheap
    assert guard.charge(ada, cheap, 29.9995, 60.0) is None  # another minute
    assert guard.charge(ada, other, 0.0004, 61.0) is None
    assert guard.charge(ada, other, 0.0004, 62.0) is None


@pytest.mark.both_engines
async def test_a_rule_that_takes_too_much_time_is_stopped_and_says_so(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[RuleReported] = []
    home.services.core.router.subscribe(RuleReported, told.append)
    monkeypatch.setattr("broker.rules.running.guards.RULE_COST_SECONDS", -1.0)
    monkeypatch.setattr("broker.rules.running.guards._CHEAP_SECONDS", 0.0)
    rule = await home.rule(body([when("temperature", ">", 25, device=EVERY)]))
    other = await home.rule(body([WARM]))  # without a selector: nothing is measured
    await home.says({"temperature": 30})
    assert ((await home.status(rule)).run_state, (await home.status(other)).run_state) == (
        RunState.STOPPED,
        RunState.RUNNING,
    )
    assert [(one.kind, one.rule_id) for one in told] == [("stopped", rule.id)]


@pytest.mark.both_engines
async def test_a_selector_means_a_bounded_number_of_devices(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.rules.running.evaluator.RULE_SELECTED_DEVICES", 1)
    in_if = await home.rule(body([when("temperature", ">", 25, device=EVERY)]))
    in_then = await home.rule(body([WARM], ALL_ON))
    for_one = await home.rule(body([when("temperature", ">", 25, device={"selector": "any", "dtid": LIGHT_TYPE})]))
    await home.says({"temperature": 30})
    run_state = [(await home.status(rule)).run_state for rule in (in_if, in_then, for_one)]
    assert run_state == [RunState.STOPPED, RunState.STOPPED, RunState.RUNNING]
    assert "more than 10000 devices" in (await home.status(in_if)).record.stop_reason


async def test_a_simulation_ends_when_its_time_is_used_up(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    rule = await home.rule(body([WARM]))
    mid = await home.says({"temperature": 30})
    compiled = await home.services.rules.names.compiled(rule)
    monkeypatch.setattr("broker.rules.explaining.simulation.RULE_HISTORY_SECONDS", -1)
    start, end = Milliseconds(NOW_MS - 1), Milliseconds(NOW_MS + 1)
    for work in (
        home.services.rules.replays.run(compiled, start, end),
        home.services.rules.explainer.of_time(rule, compiled, start, end),
        home.services.rules.explainer.of_message(rule, compiled, mid),
    ):
        with pytest.raises(Conflict) as refused:  # nothing is ready, so there is nothing to go on from
            await work
        assert str(refused.value) == TOO_LONG


@pytest.mark.both_engines
@pytest.mark.parametrize("kind", ["replay", "explain"])
async def test_a_simulation_answers_what_was_ready_and_goes_on_from_there(
    home: Home, monkeypatch: pytest.MonkeyPatch, fake_clock: FakeClock, kind: str
) -> None:
    rule = await home.rule(body([WARM]))
    mids = []
    for number in range(12):
        fake_clock.advance(1_000)
        mids.append(await home.says({"temperature": 30 if number % 2 else 20}))
    compiled = await home.services.rules.names.compiled(rule)
    checks = 0

    def check(_budget: Budget) -> None:
        nonlocal checks
        checks += 1
        if checks > 8:
            raise TookTooLongError

    async def part(start: Milliseconds) -> tuple[list[int], Milliseconds | None]:
        end = Milliseconds(fake_clock.now)
        if kind == "replay":
            replayed = await home.services.rules.replays.run(compiled, start, end)
            return [one.at_ms for one in replayed.shown], replayed.until_ms
        found, until = await home.services.rules.explainer.of_time(rule, compiled, start, end)
        return [one.at_ms for one in found if one.triggers], until

    monkeypatch.setattr(Budget, "check", check)
    at, parts, triggered = Milliseconds(NOW_MS), 0, set[int]()
    while True:
        checks = 0
        found, until = await part(at)
        triggered |= set(found)
        if until is None:
            break
        assert until > at
        at, parts = until, parts + 1
    assert parts > 1
    assert sorted(triggered) == [NOW_MS + 1_000 * number for number in range(2, 14, 2)]


async def test_a_simulation_ends_when_nobody_waits_for_it_any_more(engine: SqliteEngine) -> None:
    """The daemon can stop while one runs."""
    database, began = Database(engine), threading.Event()

    def work(_tx: Transaction, budget: Budget) -> None:
        began.set()
        while True:
            budget.check()

    await database.open()
    async with trio.open_nursery() as writer:
        await writer.start(database.commit_forever)
        begin = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(SimulationSlots(database).read, UserKey(1), work)
            assert await trio.to_thread.run_sync(began.wait, 10)
            nursery.cancel_scope.cancel()
        assert trio.current_time() - begin < 1
        writer.cancel_scope.cancel()


async def test_what_a_rule_waits_for_is_not_looked_for_among_too_many_devices(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = await home.rule(body([when("temperature", ">", 25, device=EVERY)]))
    assert (await home.status(rule)).waits_for
    monkeypatch.setattr("broker.rules.explaining.simulation.RULE_SIMULATED_DEVICES", 1)
    assert (await home.status(rule)).waits_for is None


async def test_the_simulations_of_a_user_wait_for_each_other_and_hold_up_no_other_user(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    database, turns, ada, bob = services.core.database, SimulationSlots(services.core.database), UserKey(1), UserKey(2)
    order: list[str] = []
    read, first_may_end = database.read, trio.Event()

    async def waiting_read(
        work: Callable[[Transaction], object], *, interrupt: Callable[[], object] | None = None
    ) -> object:
        if interrupt is not None and not order:  # workers read, too
            order.append("the first one")
            await first_may_end.wait()
        return await read(work, interrupt=interrupt)

    async def run(owner: UserKey, name: str) -> None:
        await turns.read(owner, lambda _tx, _budget: order.append(name))

    monkeypatch.setattr(database, "read", waiting_read)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run, ada, "Ada's 0")
        await wait_all_tasks_blocked()
        for number in range(1, 4):
            nursery.start_soon(run, ada, f"Ada's {number}")
        await wait_all_tasks_blocked()
        with pytest.raises(Conflict) as refused:
            await run(ada, "one too many")
        assert str(refused.value) == TOO_MANY_AT_ONCE
        await run(bob, "Bob's")
        assert order == ["the first one", "Bob's"]
        first_may_end.set()
    assert sorted(order) == ["Ada's 0", "Ada's 1", "Ada's 2", "Ada's 3", "Bob's", "the first one"]
    await run(ada, "again")


async def test_every_source_must_be_readable_whenever_a_rule_triggers(home: Home, world: World) -> None:
    """The application of another organization loses READ: no value of any source leaves through its rule."""
    await home.services.provisioning.apply(
        {
            "organizations": [{"name": "Beta"}],
            "applications": [{"id": "be" * 16, "name": "Beta", "organization": "Beta"}],
            "tokens": [{"value": "4a" * 16, "application": "Beta", "user": "ada@example.org"}],
            "grants": [
                {
                    "user": "ada@example.org",
                    "application": "Beta",
                    "device_type": LIGHT_TYPE,
                    "permissions": ["READ", "WRITE"],
                }
            ],
        }
    )
    value = {"valueFrom": {"sdid": HALL, "field": "temperature"}}
    leak = {"action": "sendEmail", "parameters": {"body": value}}
    content = {"if": {"and": [{"field": "datetime", "operator": "=", "operand": {"value": "* * * * * *"}}, WARM]}}
    rule = await home.rule(content | {"then": [leak]}, token="4a" * 16)
    selector = await home.rule(body([when("temperature", ">", 25, device=EVERY)], leak), token="4a" * 16)
    beta = (await home.services.core.database.read(lambda tx: tx.accounts.applications_named("Beta")))[0].key
    await allow(home.services, GrantRecord(world.ada, beta, world.light_type, read=False, write=True))
    await home.says({"temperature": 30}, HALL)
    await home.says({"temperature": 30})
    for one, missing in ((rule, f"device {KITCHEN}"), (selector, "device ")):
        texts = [problem.text for problem in (await home.status(one)).problems]
        assert any(f"READ on {missing}" in text for text in texts), texts
