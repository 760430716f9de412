"""Commands of the control socket about rules. `trunkline rule` sends them."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from broker.rules.explaining.replay import Triggered
from broker.rules.explaining.why import Why
from broker.rules.language.actions import CallHttp, Outgoing, SendAction, SendMail, WantValues
from protocols.control.lines import Explained, ExplainedCondition, ExplainedTime, ReplayedTime, ReplayedTrigger
from protocols.control.naming import named
from protocols.control.rooms import ControlRooms
from storage.keys import Milliseconds
from storage.records import MessageRow


class _Explain(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    rule: str
    message: str | None = None
    start: Milliseconds = Milliseconds(0)
    end: Milliseconds = Milliseconds(0)


class _Replay(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    rule: str
    start: Milliseconds
    end: Milliseconds


async def _explain(rooms: ControlRooms, arguments: Mapping[str, Any]) -> object:
    wanted = msgspec.convert(arguments, _Explain)
    with named("rule", wanted.rule):
        record = await rooms.rules.rulebook.find(wanted.rule)
    rule = await rooms.rules.names.compiled(record)
    reasons = rooms.rules.explainer
    if wanted.message is not None:
        with named("message", wanted.message):
            found, until = [await reasons.of_message(record, rule, wanted.message)], None
    else:
        found, until = await reasons.of_time(record, rule, wanted.start, wanted.end)
    return ExplainedTime([_explained(rooms, one) for one in found], until)


def _explained(rooms: ControlRooms, why: Why) -> Explained:
    conditions = [ExplainedCondition(one.report.path, one.report.held, one.sentence) for one in why.conditions]
    return Explained(why.at_ms, _mid(rooms, why.row), why.triggers, why.counts, conditions)


def _mid(rooms: ControlRooms, row: MessageRow | None) -> str:
    return "" if row is None else rooms.messages.mids.mid(row.position)


async def _replay(rooms: ControlRooms, arguments: Mapping[str, Any]) -> object:
    wanted = msgspec.convert(arguments, _Replay)
    with named("rule", wanted.rule):
        record = await rooms.rules.rulebook.find(wanted.rule)
    rule = await rooms.rules.names.compiled(record)
    replayed = await rooms.rules.replays.run(rule, wanted.start, wanted.end)
    triggers = [await _triggered(rooms, one) for one in replayed.shown]
    return ReplayedTime(replayed.messages, replayed.triggered, triggers, replayed.until_ms)


async def _triggered(rooms: ControlRooms, triggered: Triggered) -> ReplayedTrigger:
    actions = [await _line(rooms, one) for one in triggered.outgoing]
    return ReplayedTrigger(triggered.at_ms, _mid(rooms, triggered.row), actions)


async def _line(rooms: ControlRooms, sent: Outgoing) -> str:
    match sent:
        case SendAction():
            parameters = msgspec.json.encode(sent.parameters).decode()
            return f"{sent.name} {parameters} to {await rooms.devices.registry.id_of(sent.device)}"
        case WantValues():
            values = msgspec.json.encode(sent.values).decode()
            return f"{values} wanted of {await rooms.devices.registry.id_of(sent.device)}"
        case CallHttp():
            return f"{sent.method} {sent.url}"
        case SendMail():
            return f"mail to {sent.to or 'the owner'}: {sent.subject}"
        case _:
            return f"nothing: {sent.reason}"


RULE_COMMANDS: Mapping[str, Callable[[ControlRooms, Mapping[str, Any]], Awaitable[object]]] = {
    "rule explain": _explain,
    "rule replay": _replay,
}
