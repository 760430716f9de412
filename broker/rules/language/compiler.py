"""Compiles bodies of rules (reference 12.2 and 12.3)."""

from collections.abc import Mapping
from typing import Final

import msgspec

from broker.errors import REQUIRED, ValidationFailed, too_long
from broker.nesting import NestedTooDeeplyError, check_value_nesting
from broker.rules.language.action_parser import ActionParser
from broker.rules.language.alarms import alarm_of
from broker.rules.language.body_reader import INVALID_RULE, BodyReader, ResolvedNames
from broker.rules.language.condition_parser import ConditionParser
from broker.rules.language.rule import CompiledRule
from config.limits import RULE_ACTIONS_MAX, RULE_BODY_BYTES, RULE_CONDITIONS_MAX

_RULE: Final = "rule"
_CONDITION_MEMBERS: Final = frozenset({"sdid", "field", "operator", "operand"})


def compile_rule(body: object, names: ResolvedNames, *, key: int) -> CompiledRule:
    """Make a rule of a decoded body `{"if":…,"then":…,"alarm":…}`; one with an alarm needs no `then`.

    Args:
        body: the member `rule` as it was sent.
        names: the devices and types that the body names (`names_in`).
        key: the caller's number for the rule.

    Raises ValidationFailed with all findings; their paths begin with `rule`.
    """
    if not isinstance(body, Mapping):
        raise ValidationFailed.of(_RULE, REQUIRED if body is None else INVALID_RULE)
    _check_size(body)
    reader = BodyReader(names)
    conditions = ConditionParser(reader, key).conditions(_conditions(reader, body.get("if"), "rule.if"))
    then, has_alarm = body.get("then"), body.get("alarm") is not None
    entries = (
        [] if has_alarm and (then is None or then == []) else _entries(reader, then, "rule.then", RULE_ACTIONS_MAX)
    )
    actions = ActionParser(reader).actions(entries)
    alarm = alarm_of(reader, body.get("alarm"), conditions)
    reader.check_matched({group.device_type for group in conditions.groups})
    reader.check()
    return CompiledRule(key, conditions, actions, alarm)


def _check_size(body: Mapping[object, object]) -> None:
    """Raises ValidationFailed."""
    try:
        check_value_nesting(body)
        size = len(msgspec.json.encode(body))
    except (NestedTooDeeplyError, TypeError, ValueError, OverflowError) as error:  # no JSON document
        raise ValidationFailed.of(_RULE, INVALID_RULE) from error
    if size > RULE_BODY_BYTES:
        raise ValidationFailed.of(_RULE, too_long(RULE_BODY_BYTES))


def _conditions(reader: BodyReader, value: object, path: str) -> list[tuple[str, object]]:
    """`{"and": […]}`, or one condition."""
    if isinstance(value, Mapping) and value.get("and") is None and not _CONDITION_MEMBERS.isdisjoint(value):
        return [(path, value)]
    if not isinstance(value, Mapping):
        reader.refuse(path, REQUIRED if value is None else INVALID_RULE)
        return []
    entries = value.get("and")
    if not isinstance(entries, list | tuple):
        reader.refuse(f"{path}.and", REQUIRED if entries is None else INVALID_RULE)
        return []
    return _entries(reader, entries, f"{path}.and", RULE_CONDITIONS_MAX)


def _entries(reader: BodyReader, value: object, path: str, most: int) -> list[tuple[str, object]]:
    """The entries of an array that must have some, or one object instead of an array, with their paths."""
    if isinstance(value, Mapping):
        return [(path, value)]
    if not isinstance(value, list | tuple):
        reader.refuse(path, REQUIRED if value is None else INVALID_RULE)
        return []
    if not value:
        reader.refuse(path, REQUIRED)
    if len(value) > most:
        reader.refuse(path, too_long(most))
    return [(f"{path}.{index}", entry) for index, entry in enumerate(value[:most])]
