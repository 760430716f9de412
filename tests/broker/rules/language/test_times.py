"""`datetime` conditions of rules: when they are evaluated, and together with others (reference 12.8)."""

from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from broker.rules.language.condition_parser import parse_schedule
from broker.rules.language.conditions import NO_DEVICE, TimeCondition
from storage.keys import Milliseconds
from tests.broker.rules.language.rule_world import FakeView, body, condition, findings, rule
from tests.rows import each_row
from tests.wording import INVALID


def time(operator: str, expression: str) -> dict[str, Any]:
    return {"field": "datetime", "operator": operator, "operand": {"value": expression}}


def at(text: str, zone: str = "UTC") -> Milliseconds:
    return Milliseconds(int(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()) * 1000)


def test_a_rule_is_evaluated_at_the_beginning_of_each_matching_minute() -> None:
    made = rule(time("=", "30 18 * * * *"))
    assert made.conditions.times
    assert made.watches == ()
    assert made.next_minute(at("2026-05-08T18:30")) == at("2026-05-09T18:30")
    view = FakeView(now_ms=at("2026-05-08T18:30"))
    assert made.on_minute(view).match is not None
    view.now_ms = at("2026-05-08T18:31")
    assert made.on_minute(view).match is None


def test_at_other_times_no_minute_triggers_although_the_conditions_hold() -> None:
    made = rule(time(">=", "0 18 * * * *"))
    for now, triggers in (("18:00", True), ("18:01", False), ("18:00:01", False)):
        assert (made.on_minute(FakeView(now_ms=at(f"2026-05-08T{now}"))).match is not None) is triggers


def test_the_other_conditions_are_met_by_last_values() -> None:
    made = rule(time("=", "30 18 * * * *"), condition("s1", "temp", ">", 20))
    view = FakeView(now_ms=at("2026-05-08T12:00")).sends("s1", {"temp": 25})
    assert made.on_message(view).match is None
    view.now_ms, view.message = at("2026-05-08T18:30"), None
    assert made.on_minute(view).match is not None


def test_a_message_within_the_matching_minute_triggers() -> None:
    made = rule(time("=", "* 18 * * * *"), condition("s1", "temp", ">", 20))
    view = FakeView(now_ms=at("2026-05-08T18:59:59")).sends("s1", {"temp": 25})
    assert made.on_message(view).match is not None
    view.later(1)
    assert made.on_message(view.sends("s1", {"temp": 25})).match is None


def test_both_kinds_of_expressions_combine() -> None:
    evening = time(">", "@sunset 48.85 2.35 +00:00 TZ Europe/Paris")
    made = rule(evening, time("=", "*/10 * * * * * TZ Europe/Paris"))
    assert made.next_minute(at("2026-06-21T12:01")) == at("2026-06-21T12:10")
    view = FakeView(now_ms=at("2026-06-21T20:00", "Europe/Paris"))
    assert made.on_minute(view).match is None
    view.now_ms = at("2026-06-21T22:10", "Europe/Paris")
    assert made.on_minute(view).match is not None


def test_a_rule_without_more_times_has_no_next_minute() -> None:
    assert rule(time("=", "0 0 1 1 * 2020")).next_minute(at("2026-01-01")) is None
    assert rule(condition("s1", "temp", ">", 20)).next_minute(at("2026-01-01")) is None


@each_row(
    ("changes", "expected"),
    [
        ({"operator": "!="}, [("operator", 'Operator "!=" is not allowed')]),
        ({"operator": "is in message"}, [("operator", 'Operator "is in message" is not allowed')]),
        ({"operand": None}, [("operand", "Required parameter")]),
        ({"operand": "* * * * * *"}, [("operand", INVALID)]),
        ({"operand": {}}, [("operand.value", "Required parameter")]),
        ({"operand": {"value": 5}}, [("operand.value", "Text field only")]),
        ({"operand": {"value": "* * * * *"}}, [("operand.value", INVALID)]),
        ({"operand": {"value": "@noon"}}, [("operand.value", INVALID)]),
        ({"duration": {"value": 5}}, [("duration", INVALID)]),
        ({"transformer": {"type": "prediction"}}, [("transformer", INVALID)]),
        ({"sdid": "nobody"}, []),
        ({"operand": {"value": " 0 18 * * * * "}}, []),
    ],
)
def test_findings_about_times(changes: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    made = {**time("=", "0 18 * * * *"), **changes}
    assert findings(body(made)) == [(f"rule.if.and.0.{member}", text) for member, text in expected]


def test_an_answer_that_is_kept_is_that_of_the_schedule() -> None:
    sunset = "@sunset 48.85 2.35 +00:00 TZ Europe/Paris"
    texts = ("*/15 8-17 * * mon-fri *", "30 2 * 3,10 * * TZ Europe/Paris", "0 0 1 1 * 2026", sunset)
    for text in texts:
        schedule = parse_schedule(text)
        condition = TimeCondition(0, "", NO_DEVICE, None, None, "", None, None, schedule, "=")
        moments = [Milliseconds(at("2026-03-20T00:00") + step * 1_740_001) for step in range(120)]
        for at_ms in (*moments, *reversed(moments)):
            assert condition.next_after(at_ms) == schedule.next_after(at_ms), text
