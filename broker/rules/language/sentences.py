"""The conditions of a rule in sentences: what is wanted, and what was seen (reference 12.9)."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from broker.rules.language.evaluation import ConditionReport
from broker.rules.language.schedule import Schedule
from broker.rules.language.values import Seen
from storage.keys import Milliseconds

_ASKED_MAX: Final = 30  # at least 240 days: longer than any night


def conditions_of(body: str) -> list[dict[str, Any]]:
    """The conditions of a valid body, JSON, in their order."""
    found = msgspec.json.decode(body)["if"]
    several = found.get("and", found)
    return list(several) if isinstance(several, list) else [several]


def sentence(
    condition: dict[str, Any], report: ConditionReport, seen: Sequence[tuple[str, Seen]], at_ms: Milliseconds
) -> str:
    """One sentence: what is wanted, and what was seen. Times are UTC, as `2027-05-16T23:58:00Z`."""
    wanted = f"{condition['field']} {condition['operator']}"
    if report.schedule is not None:
        return _of_times(condition, report.schedule, at_ms, held=report.held is True)
    if report.operand is not None:
        wanted += f" {_text(report.operand)}"
    holds = {True: "holds", False: "does not hold", None: "is not known"}[report.held]
    values = ", ".join(
        f"{one.field} of {did} is {'not known' if one.value is None else _text(one.value)}" for did, one in seen
    )
    if report.output is not None:
        wanted = f"the model, as it is now, says {_text(report.output)}: {wanted}"
    text = f"{wanted} {holds}"
    if report.timer is not None and not report.timer.elapsed:
        text = f"{wanted} has held since {_time(report.timer.since_ms)}, and must until {_time(report.timer.due_ms)}"
    elif report.timer is None and report.holds_now is True:
        text = f"{wanted} holds, and its duration begins with the next message"
    elif report.timer is None and report.holds_now is None and condition.get("duration") is not None:
        text = f"{wanted} is not known"
    return f"{text}: {values}" if values else text


def _of_times(condition: dict[str, Any], schedule: Schedule, at_ms: Milliseconds, *, held: bool) -> str:
    wanted = f"datetime {condition['operator']} {condition['operand']['value']}"
    if held:
        return f"{wanted} holds"
    parts = [schedule.missing(at_ms)]
    if condition["operator"] == "=":
        following = schedule.next_after(at_ms)
        for _ in range(_ASKED_MAX):
            if following is None or schedule.holds("=", following):
                break
            following = schedule.next_after(following)
        parts.append("no next time" if following is None else f"next at {_time(following)}")
    return f"{wanted} does not hold" + "".join(
        f"{sign} {part}" for sign, part in zip(":,", filter(None, parts), strict=False)
    )


def _time(at_ms: Milliseconds) -> str:
    return f"{datetime.fromtimestamp(at_ms // 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode()
