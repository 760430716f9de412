"""Output of rules: mails and HTTP requests within their budgets, problems, loops, and what the owner is told."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.devices.inventory import DeviceChanges
from broker.facts import RuleReported
from broker.rules.explaining.status import RunState
from broker.rules.rulebook import RuleChanges
from broker.rules.sending.requests import HttpContent, RuleRequestFailedError
from broker.services import Services
from storage.records import MailRecord
from tests.broker.device_management.devices import mock_time
from tests.broker.rules.home import HALL_ID, ON, Home, body, when
from tests.builders import ServicesOpener
from tests.factories import HALL, KITCHEN, LIGHT_TYPE, build_world

pytestmark = pytest.mark.slow


CALL = {"action": "httpRequest", "parameters": {"method": {"value": "POST"}, "url": {"value": "https://example.org/"}}}
MAIL = {"action": "sendEmail", "parameters": {"subject": {"value": "Hot"}, "body": {"value": "It is hot"}}}
WARM = when("temperature", ">", 25)


class FakeRequests:
    """Takes the requests of rules; fails while `error` is set, and never answers while it `hangs`."""

    def __init__(self) -> None:
        self.sent: list[HttpContent] = []
        self.error = ""
        self.hangs = False

    async def send(self, request: HttpContent) -> int:
        await trio.lowlevel.checkpoint()
        if self.hangs:
            await trio.sleep_forever()
        if self.error:
            raise RuleRequestFailedError(self.error)
        self.sent.append(request)
        return 200


@pytest.fixture
def requests() -> FakeRequests:
    return FakeRequests()


@pytest.fixture
async def services(opener: ServicesOpener, requests: FakeRequests) -> AsyncIterator[Services]:
    async with opener(clock=mock_time(), rule_requests=requests) as opened:
        await build_world(opened.core.database, opened.core.vault)
        yield opened


@pytest.fixture
async def home(services: Services) -> Home:
    return Home(services)


@pytest.fixture
def told(services: Services) -> list[RuleReported]:
    """The events about rules."""
    reports: list[RuleReported] = []
    services.core.router.subscribe(RuleReported, reports.append)
    return reports


async def mails_of(services: Services, kind: str) -> list[MailRecord]:
    def work(tx: object) -> list[MailRecord]:
        rows = tx.mails._db.execute("SELECT * FROM mail WHERE kind = :kind", {"kind": kind})  # type: ignore[attr-defined]
        return [MailRecord(**{name: row[name] for name in MailRecord.__struct_fields__}) for row in rows]

    return await services.core.database.read(work)


async def test_a_request_is_sent_once(home: Home, requests: FakeRequests) -> None:
    await home.rule(body([WARM], CALL))
    await home.says({"temperature": 30})
    assert [(one.method, one.url) for one in requests.sent] == [("POST", "https://example.org/")]


async def test_five_requests_a_minute_and_fifty_a_day_are_sent_for_each_account(
    home: Home, requests: FakeRequests, autojump_clock: MockClock
) -> None:
    rule = await home.rule(body([WARM], CALL, {"ddid": HALL_ID, **ON}))
    for _ in range(7):
        await home.says({"temperature": 30})
    assert len(requests.sent) == 5
    assert await home.count() == 7  # the other Actions go on
    problems = (await home.status(rule)).problems
    assert [(one.field, one.times) for one in problems] == [("rule.then.0", 2)]
    for _ in range(12):
        await trio.sleep(61)
        for _ in range(5):
            await home.says({"temperature": 30})
    assert len(requests.sent) == 50


@pytest.mark.both_engines
async def test_five_mails_a_minute_are_sent_to_the_owner(home: Home) -> None:
    rule = await home.rule(body([WARM], MAIL))
    for _ in range(7):
        await home.says({"temperature": 30})
    mails = await mails_of(home.services, "rule_mail")
    assert [one.recipient for one in mails] == ["ada@example.org"] * 5
    shown = await home.status(rule)
    assert shown.run_state is RunState.FAILING
    assert shown.problems[0].text == "Not sent: more than 5 e-mails in a minute or 50 in a day"


async def test_a_request_that_waits_is_sent_after_a_restart(
    opener: ServicesOpener, requests: FakeRequests, autojump_clock: MockClock
) -> None:
    requests.hangs = True
    async with opener(clock=mock_time(), rule_requests=requests) as services:
        await build_world(services.core.database, services.core.vault)
        home = Home(services)
        await home.rule(body([WARM], CALL))
        await home.says({"temperature": 30})
    requests.hangs = False
    for _ in range(2):
        async with opener(clock=mock_time(), rule_requests=requests) as services:
            await wait_all_tasks_blocked()
    assert len(requests.sent) == 1


@pytest.mark.both_engines
async def test_a_request_that_fails_is_a_problem_of_its_rule(
    home: Home, requests: FakeRequests, told: list[RuleReported]
) -> None:
    requests.error = "the address is private"
    rule = await home.rule(body([WARM], CALL))
    await home.says({"temperature": 30})
    shown = await home.status(rule)
    assert (shown.run_state, shown.problems[0].text) == (RunState.FAILING, "the address is private")
    assert [(one.kind, one.rule_id, one.text) for one in told] == [("failed", rule.id, "the address is private")]


async def test_a_receiver_that_never_answers_holds_nothing_else_up(home: Home, requests: FakeRequests) -> None:
    requests.hangs = True
    await home.rule(body([WARM], CALL, {"ddid": HALL_ID, **ON}))
    for _ in range(6):
        await home.says({"temperature": 30})
    assert await home.count() == 6


async def test_ten_kinds_of_failures_are_told_within_a_second(home: Home, told: list[RuleReported]) -> None:
    """Seeded run-time errors: each is in REST's problems and in the events, and the rule does not read healthy."""
    text = {"valueFrom": {"sdid": KITCHEN, "field": "text"}}
    unknown = {"valueFrom": {"sdid": HALL, "field": "text"}}
    mail: dict[str, Any] = {"action": "sendEmail"}
    actions: list[dict[str, Any]] = [
        {"action": "httpRequest", "parameters": {"method": {"value": "GET"}, "url": unknown}},
        {"action": "httpRequest", "parameters": {"method": {"value": "GET"}, "url": text}},
        {"action": "httpRequest", "parameters": {"method": text, "url": {"value": "https://example.org/"}}},
        mail | {"parameters": {"to": text, "subject": {"value": "S"}, "body": {"value": "B"}}},
        mail | {"parameters": {"subject": {"concat": [text] * 40}, "body": {"value": "B"}}},
        mail | {"parameters": {"subject": unknown, "body": {"value": "B"}}},
        mail | {"parameters": {"subject": {"value": "S"}, "body": unknown}},
        mail | {"parameters": {"to": unknown, "subject": {"value": "S"}, "body": {"value": "B"}}},
        {"ddid": HALL, **ON},  # disabled below
        {"action": "httpRequest", "parameters": {"method": unknown, "url": {"value": "https://example.org/"}}},
    ]
    rule = await home.rule(body([WARM], *actions))
    hall = await home.services.devices.registry.find(HALL)
    await home.services.devices.inventory.change(hall, DeviceChanges(enabled=False))
    await home.says({"temperature": 30, "text": "no address, no method and no name " * 3})
    fields = {f"rule.then.{index}" for index in range(10)}
    shown = await home.status(rule)
    assert {one.field for one in shown.problems} == fields
    assert {one.field for one in told} == fields
    assert shown.run_state is RunState.FAILING


async def test_a_rule_that_succeeds_again_is_running_again(home: Home, requests: FakeRequests) -> None:
    text = {"valueFrom": {"sdid": HALL, "field": "text"}}
    parameters = {"subject": text, "body": {"value": "B"}}
    rule = await home.rule(body([WARM], {"action": "sendEmail", "parameters": parameters}))
    await home.says({"temperature": 30})
    assert (await home.status(rule)).run_state is RunState.FAILING
    await home.says({"text": "Known"}, HALL)
    await home.says({"temperature": 30})
    assert (await home.status(rule)).run_state is RunState.RUNNING


async def test_rules_that_trigger_each_other_are_stopped(home: Home, told: list[RuleReported]) -> None:
    """The hall answers the first rule's Action with a message that triggers the second rule, and so on."""
    first = await home.rule(body([WARM]), name="first")
    second = await home.rule(
        body([when("state", "=", value=True, device=HALL)], {"ddid": KITCHEN, **ON}), name="second"
    )
    answers: dict[str, dict[str, Any]] = {HALL: {"state": True}, KITCHEN: {"temperature": 30}}
    kitchen, answered = (await home.services.devices.registry.find(KITCHEN)).key, 0
    await home.says(answers[KITCHEN])
    while answered < await home.count():  # each light answers each Action
        action = (await home.actions())[answered]
        device = KITCHEN if action.device == kitchen else HALL
        answered += 1
        await home.says(answers[device], device)
    standings = {(await home.status(rule)).run_state for rule in (first, second)}
    assert standings == {RunState.STOPPED, RunState.RUNNING}
    assert [one.kind for one in told] == ["stopped"]
    mails = await mails_of(home.services, "rule_stopped")
    assert [one.recipient for one in mails] == ["ada@example.org"]
    assert await home.count() < 230
    stopped = first if (await home.status(first)).run_state is RunState.STOPPED else second
    await home.change(stopped, RuleChanges(enabled=True))
    assert (await home.status(stopped)).run_state is RunState.RUNNING


async def test_a_busy_rule_that_causes_nothing_is_not_stopped(home: Home) -> None:
    rule = await home.rule(body([WARM]))
    for _ in range(300):
        await home.says({"temperature": 30})
    assert ((await home.status(rule)).run_state, await home.count()) == (RunState.RUNNING, 300)


@pytest.mark.both_engines
async def test_a_rule_whose_device_is_deleted_becomes_invalid(home: Home, told: list[RuleReported]) -> None:
    rule = await home.rule(body([WARM]))
    asleep = await home.rule(body([WARM]), enabled=False)
    hall = await home.services.devices.registry.find(HALL)
    await home.services.devices.inventory.delete(hall)
    await wait_all_tasks_blocked()
    for one in (rule, asleep):
        shown = await home.status(one)
        assert shown.run_state is RunState.INVALID
        assert [(item.field, item.messages) for item in shown.findings] == [
            ("rule.then.0.ddid", (f'Device "{HALL}" does not exist',))
        ]
    assert {(one.kind, one.rule_id) for one in told} == {("invalidated", rule.id), ("invalidated", asleep.id)}
    assert len(await mails_of(home.services, "rule_stopped")) == 2
    await home.change(rule, RuleChanges(body=rule.body.replace(HALL, KITCHEN).encode()))
    assert (await home.status(rule)).run_state is RunState.RUNNING


async def test_a_rule_whose_field_left_the_manifest_becomes_invalid(home: Home) -> None:
    rule = await home.rule(body([WARM]))
    manifest = {"fields": [{"name": "state", "valueClass": "Boolean"}], "actions": [{"name": "setOn"}]}
    await home.services.device_types.manifests.upload(LIGHT_TYPE, manifest)
    await wait_all_tasks_blocked()
    shown = await home.status(rule)
    assert [(one.field, one.messages) for one in shown.findings] == [
        ("rule.if.and.0.field", ('Field "temperature" does not exist',))
    ]
