"""An alarm is raised once, counted, acknowledged and cleared, also over a crash."""

from typing import Any

import msgspec
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from broker.alarms.changes import ClearedBy
from broker.devices.transfers import hand_over
from broker.errors import Conflict, ValidationFailed
from broker.facts import AlarmReported
from broker.rules.rulebook import RuleChanges
from broker.rules.running.engine import RuleEngine
from broker.services import Services
from config import limits
from storage.alarms import AlarmFilter, AlarmRecord
from storage.keys import Milliseconds, UserKey
from tests.broker.rules.home import Home, body, when
from tests.builders import ServicesOpener
from tests.factories import ADA, HALL, KITCHEN, LIGHT_TYPE, NOW_MS, World, build_world
from tests.fakes import FakeClock
from tests.rows import each_row

ALARM: dict[str, Any] = {"severity": "critical", "text": "It is dark"}
DARK = when("intensity", "<", 10)


def ringing(condition: Any = DARK, **alarm: Any) -> dict[str, Any]:
    return body(condition) | {"then": [], "alarm": ALARM | alarm}


@pytest.fixture
async def world(services: Services) -> World:
    return await build_world(services.core.database, services.core.vault)


@pytest.fixture
async def home(services: Services, world: World) -> Home:
    return Home(services)


async def alarms(services: Services, **which: Any) -> list[AlarmRecord]:
    """All alarms of Ada, the last raised first."""

    owner = await services.accounts.users.find(ADA)
    return list((await services.alarms.alarms.page(AlarmFilter(owner.key, **which), offset=0, count=1000))[0])


@pytest.fixture
def told(services: Services) -> list[AlarmReported]:
    reports: list[AlarmReported] = []
    services.core.router.subscribe(AlarmReported, reports.append)
    return reports


async def test_an_alarm_is_raised_counted_and_cleared_by_its_condition(
    home: Home, told: list[AlarmReported], fake_clock: FakeClock
) -> None:
    rule = await home.rule(
        ringing(text={"concat": [{"value": "Only "}, {"valueFrom": {"sdid": KITCHEN, "field": "intensity"}}]})
    )
    mid = await home.says({"intensity": 3})
    fake_clock.advance(60 * 1000)
    await home.says({"intensity": 2})
    (alarm,) = await alarms(home.services)
    assert (alarm.text, alarm.severity, alarm.count, alarm.rule_id) == ("Only 3", "critical", 2, rule.id)
    assert (alarm.raised_on, alarm.last_on, alarm.device_id) == (NOW_MS, NOW_MS + 60_000, KITCHEN)
    assert alarm.message is not None
    assert home.services.messages.mids.mid(alarm.message) == mid
    condition, told_of = msgspec.json.decode(alarm.cause)
    assert told_of == {"field": "rule.alarm.text", "text": "", "seen": [[KITCHEN, "intensity", None, None]]}
    assert condition["text"] == f"intensity < 10 holds: intensity of {KITCHEN} is 3"
    assert condition["seen"] == [[KITCHEN, "intensity", 3, NOW_MS]]
    fake_clock.advance(30 * 1000)
    await home.says({"intensity": 40})
    (alarm,) = await alarms(home.services)
    assert (alarm.cleared_on, alarm.cleared_by) == (NOW_MS + 90_000, ClearedBy.CONDITION)
    await home.says({"intensity": 1})
    assert [one.cleared_on is None for one in await alarms(home.services)] == [True, False]
    assert [one.kind for one in told] == ["raised", "cleared", "raised"]


async def test_an_alarm_is_cleared_after_a_time_without_triggers(home: Home, fake_clock: FakeClock) -> None:
    await home.rule(ringing(clearAfter=60))
    await home.says({"intensity": 3})
    fake_clock.advance(30 * 1000)
    await home.says({"intensity": 40})
    fake_clock.advance(20 * 1000)
    await home.says({"intensity": 2})
    fake_clock.advance(59 * 1000)
    await home.says({"intensity": 50})
    (alarm,) = await alarms(home.services)
    assert (alarm.count, alarm.cleared_on) == (2, None)
    fake_clock.advance(10 * 1000)
    await home.says({"intensity": 50})  # the time is looked at with the next message, and counts from when it was due
    (alarm,) = await alarms(home.services)
    assert (alarm.cleared_on, alarm.cleared_by) == (NOW_MS + 110_000, ClearedBy.TIME)


async def test_it_is_acknowledged_once_and_cleared_by_hand(home: Home, told: list[AlarmReported]) -> None:
    await home.rule(ringing())
    await home.says({"intensity": 3})
    (alarm,) = await alarms(home.services)
    service = home.services.alarms.alarms
    for _ in range(2):
        alarm = await service.acknowledge(alarm, by="user ada")
    await home.says({"intensity": 3})
    (alarm,) = await alarms(home.services)
    assert (alarm.acknowledged_by, alarm.count) == ("user ada", 2)
    for _ in range(2):
        alarm = await service.clear_by_hand(alarm, by="user ada")
    assert alarm.cleared_by == "user ada"
    assert [one.kind for one in told] == ["raised", "acknowledged", "cleared"]
    await home.says({"intensity": 3})
    second, first = await alarms(home.services)
    assert (second.count, second.cleared_on, first.id) == (1, None, alarm.id)
    await service.clear_by_hand(second, by="user ada")
    with pytest.raises(Conflict):
        await service.acknowledge(second, by="user ada")


async def test_each_device_of_a_selector_has_its_own(home: Home, world: World) -> None:
    any_light = {"selector": "any", "dtid": LIGHT_TYPE}
    await home.rule(ringing(when("intensity", "<", 10, any_light)))
    for device in (KITCHEN, HALL):
        await home.says({"intensity": 3}, device)
    await home.says({"intensity": 30}, KITCHEN)
    found = {one.device_id: one.cleared_on is None for one in await alarms(home.services)}
    assert found == {KITCHEN: False, HALL: True}


@pytest.mark.parametrize("how", ["changed", "disabled", "removed", "invalid"])
async def test_a_rule_that_does_not_go_on_clears_its_alarms(home: Home, how: str) -> None:
    rule = await home.rule(ringing())
    await home.says({"intensity": 3})
    if how == "changed":
        text = msgspec.json.encode(ringing(when("intensity", "<", 11)))
        await home.change(rule, RuleChanges(body=text))
    elif how == "disabled":
        await home.change(rule, RuleChanges(enabled=False))
    elif how == "removed":
        await home.services.rules.rulebook.remove(rule)
    else:
        await home.services.devices.inventory.delete(await home.services.devices.registry.find(KITCHEN))
        await wait_all_tasks_blocked()
    (alarm,) = await alarms(home.services)
    assert alarm.cleared_by in {ClearedBy.RULE, ClearedBy.DEVICE}
    if how == "changed":
        await home.says({"intensity": 3})
        assert [one.cleared_on is None for one in await alarms(home.services)] == [True, False]
        rule = await home.services.rules.rulebook.find(rule.id)
        await home.change(rule, RuleChanges(name="Other"))  # the rule goes on
        assert [one.cleared_on is None for one in await alarms(home.services)] == [True, False]


async def test_a_device_that_is_handed_over_takes_its_alarms_along(
    home: Home, world: World, told: list[AlarmReported]
) -> None:
    services = home.services
    await home.rule(ringing(when("intensity", "<", 10, {"selector": "any", "dtid": LIGHT_TYPE})))
    await home.says({"intensity": 3})
    kitchen = await services.devices.registry.find(KITCHEN)

    async def give_to(receiver: UserKey) -> None:
        known = kitchen.record
        await services.core.database.write(lambda tx: hand_over(tx, known, receiver, Milliseconds(NOW_MS)))
        await wait_all_tasks_blocked()

    await give_to(world.bob)
    assert await alarms(services) == []
    assert [one.kind for one in told] == ["raised", "cleared"]
    await give_to(world.ada)
    await home.says({"intensity": 2})
    (alarm,) = await alarms(services)
    assert msgspec.json.decode(alarm.cause)  # it is a new one, which says which conditions held


async def test_a_storm_is_one_alarm_with_the_count(home: Home, fake_clock: FakeClock) -> None:
    await home.rule(ringing())
    for _ in range(limits.ALARMS_A_MINUTE_OF_RULE + 5):
        await home.says({"intensity": 3})
        await home.says({"intensity": 30})
    found = await alarms(home.services)
    assert len(found) == limits.ALARMS_A_MINUTE_OF_RULE + 1
    (storm,) = [one for one in found if one.is_storm]
    assert (storm.count, storm.cleared_on) == (5, None)
    fake_clock.advance((limits.ALARM_STORM_SECONDS + 1) * 1000)
    await home.says({"intensity": 30})
    (storm,) = [one for one in await alarms(home.services) if one.is_storm]
    assert storm.cleared_on == NOW_MS + limits.ALARM_STORM_SECONDS * 1000


@pytest.mark.parametrize("when_", ["stored", "not evaluated"])
async def test_nothing_is_twice_or_missed_over_a_crash(
    opener: ServicesOpener, monkeypatch: pytest.MonkeyPatch, fake_clock: FakeClock, when_: str
) -> None:
    async def nothing(_self: Any) -> None:
        """What is not saved now is evaluated again."""

    async def never(_self: Any) -> bool:
        await trio.sleep_forever()
        return False

    async with opener() as services:
        await build_world(services.core.database, services.core.vault)
        home = Home(services)
        await home.rule(ringing(clearAfter=60))
        await home.says({"intensity": 3})
        with monkeypatch.context() as patched:
            if when_ == "not evaluated":
                patched.setattr(RuleEngine, "step", never)
            fake_clock.advance(10 * 1000)
            await home.says({"intensity": 3})
            fake_clock.advance(70 * 1000)
            await home.says({"intensity": 30})
            assert (await alarms(services))[0].count == (2 if when_ == "stored" else 1)
            patched.setattr(RuleEngine, "save", nothing)
    fake_clock.advance(3600 * 1000)
    async with opener() as services:
        await wait_all_tasks_blocked()
        (alarm,) = await alarms(services)
        assert (alarm.count, alarm.cleared_on, alarm.cleared_by) == (2, NOW_MS + 70_000, ClearedBy.TIME)


@pytest.mark.both_engines
async def test_old_alarms_are_deleted(home: Home, fake_clock: FakeClock) -> None:
    await home.rule(ringing())
    await home.says({"intensity": 3})
    await home.says({"intensity": 30})
    await home.says({"intensity": 3})
    before = Milliseconds(NOW_MS + 1)
    assert await home.services.core.database.write(lambda tx: tx.alarms.sweep(before, limit=10)) == 1
    (alarm,) = await alarms(home.services)
    assert alarm.cleared_on is None
    assert await home.services.core.database.write(lambda tx: tx.alarms.trim(alarm.owner, keep=0, limit=10)) == 0


@each_row(
    ("alarm", "field", "text"),
    [
        ({"severity": "loud"}, "severity", "Invalid value"),
        ({"severity": None}, "severity", "Required parameter"),
        ({"text": ""}, "text", "Required parameter"),
        ({"text": "x" * 501}, "text", "Maximum length 500"),
        ({"text": {"value": [1]}}, "text.value", "Invalid value"),
        ({"clearAfter": 0}, "clearAfter", "Invalid value"),
        ({"clearAfter": 1.5}, "clearAfter", "Invalid value"),
    ],
)
async def test_a_wrong_alarm_is_refused(home: Home, alarm: dict[str, Any], field: str, text: str) -> None:
    with pytest.raises(ValidationFailed) as refused:
        await home.rule(ringing(**alarm))
    (finding,) = refused.value.findings
    assert finding.field == f"rule.alarm.{field}"
    assert finding.messages[0].startswith(text)


async def test_conditions_on_times_alone_need_clear_after(home: Home) -> None:
    at_eight = {"field": "datetime", "operator": "=", "operand": {"value": "0 8 * * * *"}}
    with pytest.raises(ValidationFailed) as refused:
        await home.rule(ringing(at_eight))
    assert refused.value.findings[0].field == "rule.alarm.clearAfter"
    await home.rule(ringing(at_eight, clearAfter=60))
