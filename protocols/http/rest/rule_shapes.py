"""Bodies and answers of the calls of rules (reference 12.1 and 12.9)."""

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from broker.errors import Finding
from broker.names import name_problem
from broker.rules.explaining.replay import Replayed, Triggered
from broker.rules.explaining.simulated_alarms import ReplayedAlarm
from broker.rules.explaining.status import RuleStatus, RunState
from broker.rules.explaining.why import ConditionWhy, Why
from broker.rules.language.actions import CallHttp, Outgoing, SendAction, SendMail, WantValues
from broker.rules.rulebook import SCOPES, THIS_APPLICATION
from config.limits import NAME_MAX_CHARACTERS, RULE_DESCRIPTION_MAX_CHARACTERS
from protocols.http.openapi import samples
from protocols.http.reading import Checked
from protocols.http.schema import (
    Amount,
    Id,
    Paging,
    Shape,
    Timestamp,
    about,
    absent_if_none,
    ids,
    one_of,
    time_ms,
)
from storage.rules import RuleProblem, RuleRecord

BODY: Final[dict[str, Any]] = {
    "if": {"and": [{"sdid": samples.DID, "field": "intensity", "operator": "<", "operand": {"value": 10}}]},
    "then": [{"ddid": samples.DID, "action": "setOn", "parameters": {}}],
}
_EXAMPLE: Final[dict[str, Any]] = {
    "uid": samples.UID,
    "id": samples.RULE,
    "aid": samples.AID,
    "scope": THIS_APPLICATION,
    "name": "Dim",
    "description": "",
    "languageVersion": 1,
    "rule": BODY,
    "enabled": True,
    "index": 0,
    "isTestable": True,
    "createdOn": samples.TS,
    "modifiedOn": samples.TS,
    "state": "running",
}

_Name = Annotated[
    str, Meta(min_length=1, max_length=NAME_MAX_CHARACTERS, description="Of the rule"), Checked(name_problem)
]
_Description = Annotated[str, Meta(max_length=RULE_DESCRIPTION_MAX_CHARACTERS, description="For people")]
_Scope = Annotated[
    Literal["allApplications", "thisApplication"], about("Which applications of the user see the whole rule")
]
_Body = Annotated[Raw, about("`if`, `then` and `alarm`; at most 16 KiB", type="object", example=BODY)]
_Field = Annotated[str, about("A place in the rule", example="rule.if.and.0.sdid")]


class NewRuleBody(Shape, kw_only=True):
    example = {"name": "Dim", "rule": BODY}

    name: _Name
    rule: _Body
    description: _Description | None = None
    enabled: Annotated[bool, about("A rule that is not enabled never triggers")] = True
    scope: _Scope = "thisApplication"
    uid: Annotated[Id, about("Whose rule it is; with an application token")] | None = None


class RuleChangeBody(Shape, kw_only=True):
    example = {"enabled": False}

    id: Annotated[Id, about("As in the path")] | None = None
    name: _Name | None = None
    rule: _Body = msgspec.field(default_factory=Raw)
    description: _Description | None = None
    enabled: Annotated[bool, about("A rule that is not enabled never triggers")] | None = None
    scope: _Scope | None = None


class RuleFinding(Shape):
    field: _Field
    messages: list[str]


class RuleErrorObject(Shape):
    code: Annotated[int, about("4001")]
    message: Annotated[str, about("Validation Error")]
    errors: list[list[RuleFinding]]


class _ModelWarningObject(Shape):
    model_id: Annotated[str, about("A model of the rule")]
    messages: list[str]


class RuleWarningObject(Shape):
    code: Annotated[int, about("6316")]
    message: Annotated[str, about("Transformers warnings")]
    warnings: list[list[_ModelWarningObject]]


class ProblemObject(Shape):
    """Something that went wrong when the rule was triggered, the latest first; at most 20."""

    field: Annotated[str, about("Which Action", example="rule.then.0")]
    message: str
    first_on: Timestamp
    last_on: Timestamp
    count: Amount


class RuleObject(Shape, kw_only=True):
    shape = "Rule"
    example = _EXAMPLE

    uid: Id
    id: Id
    aid: Annotated[Id, about("Its application; only with the scope thisApplication")] | UnsetType = UNSET
    scope: Annotated[str, one_of(SCOPES)]
    name: (
        Annotated[str, about("Absent, like all that follows, when the caller may not use the devices")] | UnsetType
    ) = UNSET
    description: str | UnsetType = UNSET
    language_version: Annotated[int, about("1")] | UnsetType = UNSET
    rule: Annotated[Raw, about("As it was sent; absent from an invalid rule", type="object")] | UnsetType = UNSET
    invalidated_on: Annotated[int, time_ms("When the rule became invalid")] | UnsetType = UNSET
    error: Annotated[RuleErrorObject, about("Why it is invalid")] | UnsetType = UNSET
    warning: Annotated[RuleWarningObject, about("Models that are not ready")] | UnsetType = UNSET
    enabled: bool | UnsetType = UNSET
    index: Annotated[int, about("Its place among the user's rules, from 0")] | UnsetType = UNSET
    is_testable: Annotated[bool, about("At least one Action is static")] | UnsetType = UNSET
    created_on: Timestamp | UnsetType = UNSET
    modified_on: Timestamp | UnsetType = UNSET
    state: Annotated[str, one_of([one.value for one in RunState])] | UnsetType = UNSET
    last_triggered_on: Annotated[int, time_ms("Absent before the first time")] | UnsetType = UNSET
    stopped_on: Annotated[int, time_ms("When the service stopped it")] | UnsetType = UNSET
    stop_reason: str | UnsetType = UNSET
    waits_for: (
        Annotated[list[str], about("A sentence for each condition that does not hold now; of one rule only")]
        | UnsetType
    ) = UNSET
    problems: (
        Annotated[list[ProblemObject], about("What went wrong, the latest first; absent without any")] | UnsetType
    ) = UNSET


class RuleQuery(Shape):
    include_body: Annotated[bool, about("The stored `rule` of an invalid rule, too, so that it can be mended")] = False


class NewRuleQuery(Shape):
    user_id: Annotated[Id, about("Whose rule it is, unless the body has `uid`")] | None = None


class OwnRulesQuery(Paging):
    uid: Annotated[Id, about("The user; may be left out with a user token")] | None = None
    include_body: Annotated[bool, about("The stored `rule` of invalid rules, too")] = False


class RulesOfUserQuery(Paging):
    exclude_disabled: Annotated[bool, about("Only rules that are enabled")] = False
    scope: Annotated[
        tuple[str, ...], ids("Any of allApplications, thisApplication, otherApplications; absent: the first two")
    ] = ()
    owner: Annotated[str, about("Ignored")] | None = None
    include_body: Annotated[bool, about("The stored `rule` of invalid rules, too")] = False


class Testable(Shape):
    example = {"testable": True}

    testable: bool


class Executions(Shape):
    example = {"countApply": 3, "lastApply": samples.TS}

    count_apply: Annotated[Amount, about("How often it was triggered; test runs do not count")]
    last_apply: Annotated[int, time_ms("Absent before the first time")] | UnsetType = UNSET


# Explanations and replays


class _SeenObject(Shape):
    sdid: Id
    field: str
    value: Annotated[Any, about("Absent when the device never sent the field")] | UnsetType = UNSET
    cts: Timestamp | UnsetType = UNSET


class _RunningObject(Shape):
    since: Timestamp
    due: Timestamp
    elapsed: bool


class _ConditionObject(Shape):
    field: Annotated[str, about("The condition", example="rule.if.and.0")]
    held: Annotated[bool | None, about("null: a value is not known")]
    text: Annotated[str, about("The same in a sentence")]
    seen: list[_SeenObject]
    sdid: Annotated[Id, about("The device that a selector chose")] | UnsetType = UNSET
    operand: Annotated[Any, about("What the values were compared with")] | UnsetType = UNSET
    model_now: (
        Annotated[Any, about("What the model says, as it is now; absent without a model, or while it is not ready")]
        | UnsetType
    ) = UNSET
    duration: _RunningObject | UnsetType = UNSET


class WhyObject(Shape):
    shape = "RuleExplanation"
    example = {
        "ts": samples.TS,
        "mid": samples.MID,
        "triggers": False,
        "counts": True,
        "conditions": [
            {
                "field": "rule.if.and.0",
                "held": False,
                "text": f"intensity < 10 does not hold: intensity of {samples.DID} is 40",
                "seen": [{"sdid": samples.DID, "field": "intensity", "value": 40, "cts": samples.CTS}],
                "operand": 10,
            }
        ],
    }

    ts: Annotated[int, time_ms("When it was evaluated: of a message its cts")]
    triggers: bool
    counts: Annotated[bool, about("false: the message came before the rule was made or changed")]
    conditions: list[_ConditionObject]
    mid: Annotated[Id, about("The message; absent when the time was the cause")] | UnsetType = UNSET


class Explanations(Shape):
    example = {"explanations": [WhyObject.example], "isComplete": True}

    explanations: list[WhyObject]
    is_complete: Annotated[bool, about("false: there are more than 100, or than 3 s allow; go on at `until`")]
    until: Annotated[int, time_ms("Where the explanations ended, if they are not complete")] | UnsetType = UNSET


class ExplainMessageQuery(Shape):
    mid: Annotated[Id, about("A message of a device that the rule looks at", example=samples.MID)]


class ExplainTimeQuery(Shape):
    start_date: Annotated[int, Meta(ge=0), time_ms("From here", example=samples.TS)]
    end_date: Annotated[int, Meta(ge=0), time_ms("To here, at most 31 days", example=samples.TS + 60_000)]


class ReplayBody(Shape):
    example = {"startDate": samples.TS, "endDate": samples.TS + 3_600_000}

    start_date: Annotated[int, Meta(ge=0), time_ms("From here")]
    end_date: Annotated[int, Meta(ge=0), time_ms("To here, at most 31 days")]


class TryBody(ReplayBody, kw_only=True):
    example = {"rule": BODY, "uid": samples.UID, **ReplayBody.example}

    rule: _Body
    uid: Annotated[Id, about("Whose rule it would be; with an application token")] | None = None


class _SentObject(Shape):
    field: Annotated[str, about("Which entry of `then`", example="rule.then.0")]
    action: str | UnsetType = UNSET
    ddid: Id | UnsetType = UNSET
    parameters: Annotated[dict[str, Any], about("")] | UnsetType = UNSET
    want: Annotated[dict[str, Any], about("The values that are wanted of the device")] | UnsetType = UNSET
    url: str | UnsetType = UNSET
    to: Annotated[str, about("Empty: the owner")] | UnsetType = UNSET
    problem: Annotated[str, about("Why it cannot be sent")] | UnsetType = UNSET


class _TriggeredObject(Shape):
    ts: Timestamp
    actions: list[_SentObject]
    mid: Annotated[Id, about("The message; absent when the time was the cause")] | UnsetType = UNSET


class _ReplayedAlarmObject(Shape, kw_only=True):
    raised_on: Timestamp
    text: str
    count: Annotated[Amount, about("How often the rule would have triggered while it was open")]
    did: Annotated[Id, about("The device that it is about; absent without one")] | UnsetType = UNSET
    mid: Annotated[Id, about("The message; absent when the time was the cause")] | UnsetType = UNSET
    cleared_on: Annotated[int, time_ms("Absent: it would be open at the end")] | UnsetType = UNSET
    cleared_by: Annotated[str, about("`condition` or `time`")] | UnsetType = UNSET
    duration_ms: Annotated[Amount, about("From raised to cleared, in milliseconds")] | UnsetType = UNSET


class ReplayObject(Shape):
    shape = "RuleReplay"
    example = {
        "messages": 120,
        "evaluations": 120,
        "triggered": 1,
        "triggers": [
            {
                "ts": samples.TS,
                "mid": samples.MID,
                "actions": [{"field": "rule.then.0", "action": "setOn", "ddid": samples.DID, "parameters": {}}],
            }
        ],
        "isComplete": True,
    }

    messages: Annotated[Amount, about("Messages of the devices that the rule looks at; at most 10,000")]
    evaluations: Amount
    triggered: Amount
    triggers: Annotated[list[_TriggeredObject], about("The first 100")]
    is_complete: bool
    until: Annotated[int, time_ms("Where the replay ended, if it is not complete")] | UnsetType = UNSET
    alarms_raised: Annotated[Amount, about("Absent from a rule without an alarm")] | UnsetType = UNSET
    alarms: (
        Annotated[list[_ReplayedAlarmObject], about("The alarms that there would have been: the first 100")] | UnsetType
    ) = UNSET
    models_as_of_now: (
        Annotated[bool, about("true: conditions asked models, as they are now and not as they were then")] | UnsetType
    ) = UNSET


# Made of what the broker says


def hidden_rule(record: RuleRecord) -> RuleObject:
    """The rule as a caller sees it that may not use the devices."""
    return RuleObject(uid=record.owner_id, id=record.id, aid=_aid(record), scope=record.scope)


def rule_object(shown: RuleStatus, *, with_body: bool) -> RuleObject:
    record = shown.record
    is_invalid = record.invalidated_on is not None
    return RuleObject(
        uid=record.owner_id,
        id=record.id,
        aid=_aid(record),
        scope=record.scope,
        name=record.name,
        description=record.description,
        language_version=1,
        rule=UNSET if is_invalid and not with_body else Raw(msgspec.json.format(record.body.encode(), indent=-1)),
        invalidated_on=absent_if_none(record.invalidated_on),
        error=_error(shown.findings) if is_invalid else UNSET,
        warning=_warning(shown) if shown.warnings else UNSET,
        enabled=record.enabled,
        index=shown.index,
        is_testable=shown.is_testable,
        created_on=record.created_on,
        modified_on=record.modified_on,
        state=shown.run_state,
        last_triggered_on=absent_if_none(shown.last_on),
        stopped_on=absent_if_none(record.stopped_on),
        stop_reason=record.stop_reason or UNSET,
        waits_for=UNSET if shown.waits_for is None else list(shown.waits_for),
        problems=[_problem(one) for one in shown.problems] or UNSET,
    )


def _aid(record: RuleRecord) -> str | UnsetType:
    return record.application_id if record.scope == THIS_APPLICATION else UNSET


def _error(findings: tuple[Finding, ...]) -> RuleErrorObject:
    return RuleErrorObject(4001, "Validation Error", [[RuleFinding(one.field, list(one.messages)) for one in findings]])


def _warning(shown: RuleStatus) -> RuleWarningObject:
    warnings = [_ModelWarningObject(one.model_id, list(one.messages)) for one in shown.warnings]
    return RuleWarningObject(6316, "Transformers warnings", [warnings])


def _problem(problem: RuleProblem) -> ProblemObject:
    return ProblemObject(problem.field, problem.text, problem.first_on, problem.last_on, problem.times)


def why_object(why: Why, mid: str | None) -> WhyObject:
    conditions = [_condition(one) for one in why.conditions]
    return WhyObject(why.at_ms, why.triggers, why.counts, conditions, mid=absent_if_none(mid))


def _condition(why: ConditionWhy) -> _ConditionObject:
    report, timer = why.report, why.report.timer
    return _ConditionObject(
        field=report.path,
        held=report.held,
        text=why.sentence,
        seen=[
            _SeenObject(did, one.field, value=absent_if_none(one.value), cts=absent_if_none(one.at_ms))
            for did, one in why.seen
        ],
        sdid=absent_if_none(why.device_id),
        operand=absent_if_none(report.operand),
        model_now=absent_if_none(report.output),
        duration=UNSET if timer is None else _RunningObject(timer.since_ms, timer.due_ms, timer.elapsed),
    )


def replay_object(replayed: Replayed, mids: dict[int, str], devices: dict[int, str]) -> ReplayObject:
    return ReplayObject(
        messages=replayed.messages,
        evaluations=replayed.evaluations,
        triggered=replayed.triggered,
        triggers=[_triggered(one, mids, devices) for one in replayed.shown],
        is_complete=replayed.until_ms is None,
        until=absent_if_none(replayed.until_ms),
        alarms_raised=UNSET if replayed.alarms is None else replayed.alarms_raised,
        alarms=UNSET if replayed.alarms is None else [_replayed_alarm(one, mids, devices) for one in replayed.alarms],
        models_as_of_now=replayed.asks_models or UNSET,
    )


def _replayed_alarm(one: ReplayedAlarm, mids: dict[int, str], devices: dict[int, str]) -> _ReplayedAlarmObject:
    return _ReplayedAlarmObject(
        raised_on=one.raised_on,
        text=one.text,
        count=one.count,
        did=devices.get(one.device) or UNSET,
        mid=UNSET if one.row is None else mids[one.row.position],
        cleared_on=absent_if_none(one.cleared_on),
        cleared_by=one.cleared_by or UNSET,
        duration_ms=UNSET if one.cleared_on is None else one.cleared_on - one.raised_on,
    )


def _triggered(one: Triggered, mids: dict[int, str], devices: dict[int, str]) -> _TriggeredObject:
    mid = UNSET if one.row is None else mids[one.row.position]
    return _TriggeredObject(one.at_ms, [_sent(sent, devices) for sent in one.outgoing], mid=mid)


def _sent(sent: Outgoing, devices: dict[int, str]) -> _SentObject:
    field = f"rule.then.{sent.index}"
    match sent:
        case SendAction():
            parameters = dict(sent.parameters)
            return _SentObject(field, action=sent.name, ddid=devices.get(sent.device, ""), parameters=parameters)
        case WantValues():
            return _SentObject(field, ddid=devices.get(sent.device, ""), want=dict(sent.values))
        case CallHttp():
            return _SentObject(field, action="httpRequest", url=sent.url)
        case SendMail():
            return _SentObject(field, action="sendEmail", to=sent.to or "")
        case _:
            return _SentObject(field, problem=sent.reason)
