"""The life of an alarm in the store: raised, counted, acknowledged, cleared (reference 12.12).

Each function works in its caller's transaction and publishes the events of what it has changed.
"""

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Final

import msgspec

from broker.cluster.alarm_news import tell_of_alarm
from broker.cluster.kinds import ALARM_ENDED, AlarmEnded
from broker.ids import new_id
from storage.alarms import AlarmRecord
from storage.keys import ApplicationKey, DeviceKey, Milliseconds, Position, RuleKey, UserKey
from storage.transaction import Transaction


class ClearedBy(StrEnum):
    """Why an alarm was cleared; a person is `user …`."""

    CONDITION = "condition"
    TIME = "time"
    RULE = "rule"  # it was changed, removed or stopped
    DEVICE = "device"  # it was deleted, or is no longer the owner's to see


class AlarmRule(msgspec.Struct, frozen=True):
    """The rule that raises an alarm."""

    key: RuleKey
    id: str
    name: str
    owner: UserKey
    application: ApplicationKey


class Change(StrEnum):
    #: Raised, or counted where one is open.
    RAISED = "raised"
    #: The conditions hold on, without a trigger.
    HELD = "held"
    CLEARED = "cleared"


class AlarmChange(msgspec.Struct):
    """A change of the alarm of a rule about a device, from `at_ms` to `last_ms`. `times`: the triggers in it.

    `message`: the position of the message that was the cause. `cause` says, in the transaction, which conditions held.
    """

    rule: AlarmRule
    kind: Change
    device: DeviceKey
    is_storm: bool
    at_ms: Milliseconds
    last_ms: Milliseconds
    times: int = 0
    severity: str = ""
    text: str = ""
    position: Position = Position(0)
    message: Position | None = None
    cause: Callable[[Transaction], str] | None = None
    by: str = ""


STORM_TEXT: Final = "More alarms than are told one by one"


def carry_out(tx: Transaction, changes: Iterable[AlarmChange]) -> int:
    """Store changes in their order; return how many alarms were raised."""
    raised = 0
    for one in changes:
        match one.kind:
            case Change.CLEARED:
                key = tx.alarms.clear(one.rule.key, one.device, is_storm=one.is_storm, at_ms=one.at_ms, by=one.by)
                if key is not None:
                    _tell(tx, "cleared", key, one.at_ms)
            case Change.HELD:
                tx.alarms.count_on(one.rule.key, one.device, is_storm=one.is_storm, last_on=one.last_ms, times=0)
            case Change.RAISED:
                known = tx.alarms.count_on(
                    one.rule.key, one.device, is_storm=one.is_storm, last_on=one.last_ms, times=one.times
                )
                if known is None:
                    _tell(tx, "raised", _add(tx, one), one.at_ms)
                    raised += 1
    return raised


def _add(tx: Transaction, one: AlarmChange) -> int:
    rule = one.rule
    record = AlarmRecord(
        key=0,
        id=new_id(),
        rule=rule.key,
        rule_id=rule.id,
        rule_name=rule.name,
        owner=rule.owner,
        application=rule.application,
        device=one.device,
        severity=one.severity,
        text=one.text or rule.name,
        is_storm=one.is_storm,
        raised_on=one.at_ms,
        last_on=one.last_ms,
        count=one.times,
        position=one.position,
        message=one.message,
        cause="[]" if one.cause is None else one.cause(tx),
        tell_on=one.at_ms,
    )
    return tx.alarms.add(record)


def clear_keys(tx: Transaction, keys: Iterable[int], *, at_ms: Milliseconds, by: str) -> int:
    """Clear open alarms; return how many were open. The engine of the rules hears of it."""
    cleared = 0
    for key in keys:
        if tx.alarms.clear_key(key, at_ms=at_ms, by=by) and (record := tx.alarms.by_key(key)) is not None:
            tx.tell(ALARM_ENDED, AlarmEnded(record.rule, record.device, record.is_storm))
            _tell(tx, "cleared", key, record.cleared_on or at_ms)
            cleared += 1
    return cleared


def clear_all_of_rule(tx: Transaction, rule: RuleKey, *, at_ms: Milliseconds) -> None:
    """The rule does not run any more, or restarts."""
    clear_keys(tx, tx.alarms.open_keys_of_rule(rule), at_ms=at_ms, by=ClearedBy.RULE)


def acknowledge(tx: Transaction, key: int, *, at_ms: Milliseconds, by: str) -> bool:
    """Return whether that is new. One that is cleared is not acknowledged any more."""
    if not tx.alarms.acknowledge(key, at_ms=at_ms, by=by):
        return False
    _tell(tx, "acknowledged", key, at_ms)
    return True


def _tell(tx: Transaction, kind: str, key: int, at_ms: Milliseconds) -> None:
    record = tx.alarms.by_key(key)
    if record is not None:
        tell_of_alarm(tx, kind, record, at_ms)
