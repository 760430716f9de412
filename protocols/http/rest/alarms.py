"""/alarms: what rules have raised (reference 12.12)."""

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from broker.accounts.permissions import Permission, Reach
from broker.accounts.room import AccountsRoom
from broker.accounts.tokens import Caller
from broker.alarm_views import AlarmView, decode_cause, devices_told_of
from broker.alarms.alarms import CLEARED
from broker.alarms.room import AlarmsRoom
from broker.devices.room import DevicesRoom
from broker.errors import REQUIRED, NotFound, PermissionDenied, ValidationFailed, choice, invalid
from broker.messages.room import MessagesRoom
from broker.rules.explaining.simulation import TOO_LONG, TOO_MANY_AT_ONCE, TOO_MANY_DEVICES
from broker.rules.language.alarms import Severity
from broker.rules.room import RulesRoom
from broker.trace.origin import current_origin
from protocols.http.calls import NOTHING, USER_OR_APPLICATION, Chapter, RestCall, RestCalls
from protocols.http.openapi import samples
from protocols.http.rest.rule_shapes import Explanations, why_object
from protocols.http.schema import (
    Amount,
    Data,
    Id,
    NumberedPage,
    Paging,
    Shape,
    Timestamp,
    about,
    absent_if_none,
    ids,
    one_of,
    time_ms,
)
from protocols.rendering import alarm_members
from storage.alarms import AlarmFilter, AlarmRecord
from storage.keys import Milliseconds

RAISED: Final = "raised"
ACKNOWLEDGED: Final = "acknowledged"
STATES: Final = (RAISED, ACKNOWLEDGED, "cleared")
SEVERITIES: Final = tuple(one.value for one in Severity)
_ALARM: Final = "/alarms/{alarmId}"
_OF_ANOTHER: Final = "an alarm of another application's rule"


class _SeenObject(Shape):
    sdid: Id
    field: str
    value: Annotated[Any, about("Absent when the device had not sent the field")] | UnsetType = UNSET
    cts: Timestamp | UnsetType = UNSET


class _ConditionObject(Shape):
    field: Annotated[str, about("The condition", example="rule.if.and.0")]
    text: Annotated[str, about("A sentence: what was wanted, and what was seen")]
    seen: list[_SeenObject]


class AlarmObject(Shape, kw_only=True):
    shape = "Alarm"
    example = {
        "id": samples.ALARM,
        "uid": samples.UID,
        "aid": samples.AID,
        "rid": samples.RULE,
        "ruleName": "Too hot",
        "did": samples.DID,
        "severity": "critical",
        "text": "The freezer has 12 degrees",
        "state": ACKNOWLEDGED,
        "raisedOn": samples.TS,
        "lastOn": samples.TS + 60_000,
        "count": 3,
        "acknowledgedOn": samples.TS + 30_000,
        "acknowledgedBy": f"user {samples.UID}",
        "mid": samples.MID,
        "conditions": [
            {
                "field": "rule.if.and.0",
                "text": f"temp > 8 holds: temp of {samples.DID} is 12",
                "seen": [{"sdid": samples.DID, "field": "temp", "value": 12, "cts": samples.CTS}],
            }
        ],
    }

    id: Id
    uid: Annotated[Id, about("The user of the rule")]
    aid: Annotated[Id, about("The application that made the rule")]
    rid: Annotated[Id, about("The rule")]
    rule_name: Annotated[str, about("As it was when the alarm was raised")]
    state: Annotated[str, one_of(STATES)]
    severity: Annotated[str, one_of(SEVERITIES)]
    raised_on: Annotated[int, time_ms("When the conditions were met: of a message its cts")]
    last_on: Annotated[int, time_ms("When the rule triggered last")]
    count: Annotated[Amount, about("How often the rule has triggered while it was open")]
    did: Annotated[Id, about("The device that it is about; absent without one")] | UnsetType = UNSET
    text: Annotated[str, about("Absent when the caller may not read a device whose values were seen")] | UnsetType = (
        UNSET
    )
    acknowledged_on: Timestamp | UnsetType = UNSET
    acknowledged_by: Annotated[str, about("`user` and the id")] | UnsetType = UNSET
    cleared_on: Timestamp | UnsetType = UNSET
    cleared_by: (
        Annotated[
            str,
            about(
                "`condition`: it did not hold any more; `time`: `clearAfter` is over; `rule`: it was changed, removed "
                "or stopped; `device`: it is gone; or `user` and the id"
            ),
        ]
        | UnsetType
    ) = UNSET
    duration_ms: (
        Annotated[Amount, about("From raised to cleared, in milliseconds; absent while it is open")] | UnsetType
    ) = UNSET
    is_storm: Annotated[bool, about("true: it stands for alarms that were too many")] | UnsetType = UNSET
    mid: Annotated[Id, about("The message that raised it; absent when the time was the cause")] | UnsetType = UNSET
    conditions: Annotated[list[_ConditionObject], about("Which conditions held")] | UnsetType = UNSET


class AlarmsQuery(Paging):
    uid: Annotated[Id, about("The user; may be left out with a user token")] | None = None
    state: Annotated[tuple[str, ...], ids(f"Any of {', '.join(STATES)}; absent: all")] = ()
    severity: Annotated[tuple[str, ...], ids(f"Any of {', '.join(SEVERITIES)}; absent: all")] = ()
    rid: Annotated[Id, about("Those of this rule")] | None = None
    did: Annotated[Id, about("Those about this device")] | None = None
    start_date: Annotated[int, Meta(ge=0), time_ms("Those that were raised from here on")] | None = None
    end_date: Annotated[int, Meta(ge=0), time_ms("Those that were raised up to here")] | None = None


class AlarmChangeBody(Shape):
    example = {"state": ACKNOWLEDGED}

    state: Annotated[
        Literal["acknowledged", "cleared"],
        about("`acknowledged`: somebody knows, and nobody is told any more. `cleared`: it is over"),
    ]


class AlarmCalls(RestCalls):
    chapter = Chapter(
        "Alarms",
        "A rule with `alarm` raises one when it triggers, and counts while it triggers again. It is cleared when its "
        "conditions do not hold any more, after `clearAfter` seconds without a trigger, or by hand. It says which "
        "conditions held, and how long it lasted, also while the service was off.",
    )
    path_names = {"alarmId": (Annotated[Id, about("An alarm")], samples.ALARM)}

    def __init__(
        self, accounts: AccountsRoom, devices: DevicesRoom, messages: MessagesRoom, alarms: AlarmsRoom, rules: RulesRoom
    ) -> None:
        self._users = accounts.users
        self._permissions = accounts.permissions
        self._devices = devices.registry
        self._mids = messages.mids
        self._alarms = alarms.alarms
        self._rules = rules

    async def _own(self, caller: Caller, alarm_id: str) -> AlarmRecord:
        """An alarm of a rule that the caller's application made; the console has all of its user.

        Raises NotFound, PermissionDenied.
        """
        record = await self._alarms.find(alarm_id)
        await self._permissions.require_user(caller, record.owner)
        if not caller.is_console and caller.application != record.application:
            raise PermissionDenied(_OF_ANOTHER)
        return record

    @RestCall(
        "GET",
        "/alarms",
        tokens=USER_OR_APPLICATION,
        on=NOTHING,
        summary="Alarms of a user",
        about="Those of the rules that the application made; the console has all. The last raised come first.",
        refusals={404: "The user or the device does not exist."},
    )
    async def page(self, caller: Caller, query: AlarmsQuery) -> NumberedPage[list[AlarmObject]]:
        for name, given, known in (("state", query.state, STATES), ("severity", query.severity, SEVERITIES)):
            if not set(given) <= set(known):
                raise ValidationFailed.of(name, invalid(choice(known)))
        if query.uid is None and caller.user is None:
            raise ValidationFailed.of("uid", REQUIRED)
        owner = await self._users.find(query.uid or caller.user_id or "", caller)
        await self._permissions.require_user(caller, owner.key)
        device = None
        if query.did is not None:
            found = await self._devices.find(query.did)
            await self._permissions.require(caller, found, Permission.READ)
            device = found.key
        wanted = AlarmFilter(
            owner.key,
            None if caller.is_console else caller.application,
            query.state,
            query.severity,
            query.rid,
            device,
            None if query.start_date is None else Milliseconds(query.start_date),
            None if query.end_date is None else Milliseconds(query.end_date),
        )
        records, total = await self._alarms.page(wanted, offset=query.offset, count=query.count)
        reach = await self._permissions.reach(caller)
        shown = [await self._object(record, reach) for record in records]
        return NumberedPage(shown, total, query.offset, len(shown))

    async def _object(self, record: AlarmRecord, reach: Reach) -> AlarmObject:
        cause = decode_cause(record.cause)
        ids = devices_told_of(record, cause)
        devices = (await self._devices.find_all(ids)).values() if ids else ()
        is_readable = all(device is not None and reach.allows(device, Permission.READ) for device in devices)
        mid = None if record.message is None or not is_readable else self._mids.mid(record.message)
        return alarm_object(AlarmView(record, cause, mid, is_readable=is_readable))

    @RestCall("GET", _ALARM, tokens=USER_OR_APPLICATION, on=_own, summary="One alarm")
    async def show(self, caller: Caller, record: AlarmRecord) -> Data[AlarmObject]:
        return Data(await self._object(record, await self._permissions.reach(caller)))

    @RestCall(
        "PUT",
        _ALARM,
        tokens=USER_OR_APPLICATION,
        on=_own,
        summary="Acknowledge or clear an alarm",
        about="The same again changes nothing. While the conditions hold, the next trigger raises another alarm after "
        "one that was cleared by hand.",
        refusals={409: f"{CLEARED}: it cannot be acknowledged any more."},
    )
    async def change(self, caller: Caller, record: AlarmRecord, body: AlarmChangeBody) -> Data[AlarmObject]:
        by = current_origin().actor
        if body.state == ACKNOWLEDGED:
            record = await self._alarms.acknowledge(record, by=by)
        else:
            record = await self._alarms.clear_by_hand(record, by=by)
        return Data(await self._object(record, await self._permissions.reach(caller)))

    @RestCall(
        "GET",
        f"{_ALARM}/explain",
        tokens=USER_OR_APPLICATION,
        on=_own,
        summary="Why an alarm was raised",
        about="The rule, as it is now, is explained for the message or the time that raised the alarm, as by "
        "`GET /rules/{ruleId}/explain`. `conditions` of the alarm has what held then, also when the rule or the "
        "message is gone.",
        refusals={404: "The rule or the message is gone.", 409: f"{TOO_MANY_DEVICES}. {TOO_LONG}. {TOO_MANY_AT_ONCE}."},
    )
    async def explain(self, caller: Caller, record: AlarmRecord) -> Data[Explanations]:
        rule_record = await self._rules.rulebook.find(record.rule_id)
        await self._rules.access.require_shown(caller, rule_record)
        rule = await self._rules.names.compiled(rule_record)
        await self._rules.access.require_read(caller, rule_record, rule)
        explainer = self._rules.explainer
        until = None
        if record.message is not None:
            found = [await explainer.of_message(rule_record, rule, self._mids.mid(record.message))]
        else:
            found, until = await explainer.of_time(rule_record, rule, record.raised_on, record.raised_on)
        shown = [why_object(one, None if one.row is None else self._mids.mid(one.row.position)) for one in found]
        if not shown:
            raise NotFound
        return Data(Explanations(shown, until is None, until=absent_if_none(until)))


def alarm_object(view: AlarmView) -> AlarmObject:
    return msgspec.convert(alarm_members(view), AlarmObject)
