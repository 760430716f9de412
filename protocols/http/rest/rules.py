"""/rules: conditions on messages and times, and the Actions that follow (reference 12)."""

from functools import partial
from typing import Annotated, Final

import trio
from msgspec import UNSET

from broker.accounts.room import AccountsRoom
from broker.accounts.tokens import Caller
from broker.devices.room import DevicesRoom
from broker.errors import REQUIRED, Finding, PermissionDenied, ValidationFailed, choice, invalid
from broker.messages.room import MessagesRoom
from broker.rules.explaining.simulation import TOO_LONG, TOO_MANY_AT_ONCE, TOO_MANY_DEVICES
from broker.rules.language.actions import SendAction, WantValues
from broker.rules.language.rule import CompiledRule
from broker.rules.room import RulesRoom
from broker.rules.rulebook import (
    CHANGED_MEANWHILE,
    OTHER_APPLICATIONS,
    SCOPES,
    TOO_MANY_RULES,
    NewRule,
    RuleChanges,
    rule_provision_text,
    rule_tag,
)
from config.limits import RULE_BODY_BYTES
from protocols.http.answers import Answer
from protocols.http.calls import NOTHING, USER_OR_APPLICATION, Accepts, Chapter, RestCall, RestCalls
from protocols.http.conditional import or_present, tagged
from protocols.http.openapi import samples
from protocols.http.reading import has_value, json_object, members
from protocols.http.rest.named import NAMED_USER
from protocols.http.rest.provision_files import provision_answer, provision_answers
from protocols.http.rest.rule_shapes import (
    Executions,
    ExplainMessageQuery,
    ExplainTimeQuery,
    Explanations,
    NewRuleBody,
    NewRuleQuery,
    OwnRulesQuery,
    ReplayBody,
    ReplayObject,
    RuleChangeBody,
    RuleObject,
    RuleQuery,
    RulesOfUserQuery,
    Testable,
    TryBody,
    hidden_rule,
    replay_object,
    rule_object,
    why_object,
)
from protocols.http.schema import Data, Id, NumberedPage, about, absent_if_none
from storage.keys import Milliseconds
from storage.records import UserRecord
from storage.rules import RuleRecord

_RULE: Final = "/rules/{ruleId}"
#: Blanks and escapes do not count for the bound of a rule: each member may stand in an indented line of its own.
_BODY_BYTES: Final = 16 * RULE_BODY_BYTES
_CANNOT_SIMULATE: Final = f"{TOO_MANY_DEVICES}. {TOO_LONG}. {TOO_MANY_AT_ONCE}."
_SCOPES_OF_LISTS: Final = {one.lower(): one for one in (*SCOPES, OTHER_APPLICATIONS)}
_PROVISION_EXAMPLE: Final = f"""[[rules]]
id = "{samples.RULE}"
owner = "{samples.UID}"
application = "{samples.AID}"
name = "Dim"
description = ""
scope = "thisApplication"
enabled = true
"""


class RuleCalls(RestCalls):
    chapter = Chapter(
        "Rules",
        "If this happens, that is sent. A rule belongs to a user: `if` has conditions on the messages of the user's "
        "devices, on times and on durations, and `then` has the Actions that follow, HTTP requests and mails among "
        "them. All conditions must hold; they need not be met at the same time. Rules run beside the log: no message "
        "waits for them, and a crash neither repeats nor loses an Action. "
        "`explain` says why a rule triggered or did not, `replay` tries a rule on what has happened already.",
    )
    path_names = {"ruleId": (Annotated[Id, about("A rule")], samples.RULE)}

    def __init__(self, accounts: AccountsRoom, devices: DevicesRoom, messages: MessagesRoom, rules: RulesRoom) -> None:
        self._users = accounts.users
        self._permissions = accounts.permissions
        self._devices = devices.registry
        self._mids = messages.mids
        self._rules = rules

    async def _seen(self, caller: Caller, rule_id: str) -> RuleRecord:
        """A rule of a user for whom the caller acts. Raises NotFound, PermissionDenied."""
        record = await self._rules.rulebook.find(rule_id)
        await self._rules.access.require_user(caller, record)
        return record

    async def _own(self, caller: Caller, rule_id: str) -> RuleRecord:
        """A rule that the caller may change. Raises NotFound, PermissionDenied."""
        record = await self._rules.rulebook.find(rule_id)
        await self._rules.access.require_own(caller, record)
        return record

    async def _switched(self, caller: Caller, rule_id: str) -> RuleRecord:
        """A rule that the caller may change, or at least turn off and on. Raises NotFound, PermissionDenied."""
        record = await self._rules.rulebook.find(rule_id)
        await self._rules.access.require_changed_by(caller, record, only_switch=True)
        return record

    async def _shown(self, caller: Caller, rule_id: str) -> RuleRecord:
        """A rule that the caller sees as a whole. Raises NotFound, PermissionDenied."""
        record = await self._rules.rulebook.find(rule_id)
        await self._rules.access.require_shown(caller, record)
        return record

    @RestCall(
        "POST",
        "/rules",
        tokens=USER_OR_APPLICATION,
        on=NOTHING,
        summary="Create a rule",
        about="The rule is checked as a whole, and all findings are answered at once. It needs READ on the sources and "
        "WRITE on the destinations. With an application token, `uid` or `userId` names the user. `if` may be one "
        "condition and `then` one Action.",
        refusals={403: "A device or type is not the user's.", 404: "The user does not exist.", 409: TOO_MANY_RULES},
        accepts=Accepts({"application/json": NewRuleBody}, NewRuleBody.example),
        body_limit=_BODY_BYTES,
    )
    async def create(self, caller: Caller, query: NewRuleQuery, body: bytes) -> Data[RuleObject]:
        try:
            wanted = members(body, NewRuleBody, caller)
        except ValidationFailed as error:
            uid = json_object(body).get("uid", query.user_id or caller.user_id)
            owner = await self._owner(caller, uid) if isinstance(uid, str) else None
            raise await self._all_findings(error, caller, owner, body) from None
        owner = await self._owner(caller, wanted.uid or query.user_id)
        new = NewRule(wanted.name, bytes(wanted.rule), wanted.description or "", wanted.enabled, wanted.scope)
        return Data(await self._object(await self._rules.rulebook.create(caller, owner, new)))

    async def _all_findings(
        self, error: ValidationFailed, caller: Caller, owner: UserRecord | None, body: bytes
    ) -> ValidationFailed:
        """The findings about the members and about the rule itself. Raises PermissionDenied."""
        rule = json_object(body).get("rule")
        if owner is None or rule is None:
            return error
        return ValidationFailed((*error.findings, *await self._rules.rulebook.findings(caller, owner, rule)))

    async def _owner(self, caller: Caller, uid: str | None) -> UserRecord:
        """The user of the token, or the one that is named. Raises ValidationFailed, UserNotFound, PermissionDenied."""
        if uid is None and caller.user is None:
            raise ValidationFailed.of("uid", REQUIRED)
        owner = await self._users.find(uid or caller.user_id or "", caller)
        await self._permissions.require_user(caller, owner.key)
        return owner

    @RestCall(
        "GET",
        "/rules",
        tokens=USER_OR_APPLICATION,
        on=NOTHING,
        summary="Rules of the application for a user",
        refusals={404: "The user does not exist."},
    )
    async def own(self, caller: Caller, query: OwnRulesQuery) -> NumberedPage[list[RuleObject]]:
        owner = await self._owner(caller, query.uid)
        found, total = await self._rules.rulebook.made_by(caller, owner.key, offset=query.offset, count=query.count)
        return await self._page(caller, found, total, query.offset, with_body=query.include_body)

    @RestCall(
        "GET",
        "/users/{uid}/rules",
        tokens=USER_OR_APPLICATION,
        on=NAMED_USER,
        summary="Rules of a user",
        about="Those for all applications, and those of this application; with `scope=otherApplications` those of "
        "other applications, as `GET /rules/{ruleId}` shows them.",
    )
    async def of_user(
        self, caller: Caller, user: UserRecord, query: RulesOfUserQuery
    ) -> NumberedPage[list[RuleObject]]:
        scopes = [_SCOPES_OF_LISTS.get(one.lower()) for one in query.scope]
        if None in scopes:
            raise ValidationFailed.of("scope", invalid(choice(_SCOPES_OF_LISTS)))
        found, total = await self._rules.rulebook.of_user(
            caller,
            user.key,
            scopes=[one for one in scopes if one] or SCOPES,
            only_enabled=query.exclude_disabled,
            offset=query.offset,
            count=query.count,
        )
        return await self._page(caller, found, total, query.offset, with_body=query.include_body)

    async def _page(
        self, caller: Caller, found: list[RuleRecord], total: int, offset: int, *, with_body: bool
    ) -> NumberedPage[list[RuleObject]]:
        shown = []
        for record in found:
            await trio.lowlevel.checkpoint()  # a body takes its time, and a page has a hundred
            shown.append(await self._visible(caller, record, with_body=with_body))
        return NumberedPage(shown, total, offset, len(shown))

    async def _visible(
        self, caller: Caller, record: RuleRecord, *, with_body: bool, with_waiting: bool = False
    ) -> RuleObject:
        if await self._rules.access.is_hidden(caller, record):
            return hidden_rule(record)
        with_waiting = with_waiting and await self._rules.access.may_read(caller, record)
        return await self._object(record, with_body=with_body, with_waiting=with_waiting)

    async def _object(self, record: RuleRecord, *, with_body: bool = False, with_waiting: bool = False) -> RuleObject:
        shown = await self._rules.statuses.status(record, with_waiting=with_waiting)
        return rule_object(shown, with_body=with_body)

    @RestCall(
        "GET",
        _RULE,
        tokens=USER_OR_APPLICATION,
        on=_seen,
        summary="One rule",
        about="Says how the rule stands, when it triggered last, what it waits for, and what went wrong. A rule whose "
        "device is gone has `error` in the place of `rule`.",
        is_tagged=True,
    )
    async def show(self, caller: Caller, record: RuleRecord, query: RuleQuery) -> Data[RuleObject]:
        shown = await self._visible(caller, record, with_body=query.include_body, with_waiting=True)
        if shown.name is not UNSET:  # the tag of a hidden rule would confirm a guess at its body
            tagged(rule_tag(record))
        return Data(shown)

    @RestCall(
        "PUT",
        _RULE,
        tokens=USER_OR_APPLICATION,
        on=_switched,
        summary="Change a rule",
        about="Every member is optional. A rule that was invalid or stopped runs again. Running durations go on if "
        "neither `rule` nor `enabled` changes. The console turns off and on what other applications made for "
        "themselves, and changes nothing else of it.",
        refusals={403: "A device or type is not the user's.", 409: CHANGED_MEANWHILE},
        accepts=Accepts({"application/json": RuleChangeBody}, RuleChangeBody.example),
        body_limit=_BODY_BYTES,
        is_tagged=True,
        is_conditional=True,
    )
    async def change(self, caller: Caller, record: RuleRecord, body: bytes) -> Data[RuleObject]:
        try:
            wanted = members(body, RuleChangeBody, caller)
            if wanted.id is not None and wanted.id != record.id:
                raise ValidationFailed((Finding("id", ("rule id mismatch",)),))
        except ValidationFailed as error:
            raise await self._all_findings(error, caller, await self._users.find(record.owner_id), body) from None
        text = bytes(wanted.rule) if has_value(wanted.rule) else None
        others = (wanted.name, text, wanted.description, wanted.scope)
        only_switch = wanted.enabled is not None and all(one is None for one in others)
        await self._rules.access.require_changed_by(caller, record, only_switch=only_switch)
        changes = RuleChanges(wanted.name, text, wanted.description, wanted.enabled, wanted.scope)
        async with or_present(partial(self._present, record.id)):
            record = await self._rules.rulebook.change(caller, record, changes)
        tagged(rule_tag(record))
        return Data(await self._object(record))

    async def _present(self, rule_id: str) -> RuleObject:
        """The rule as it is now, with its tag. Raises NotFound."""
        record = await self._rules.rulebook.find(rule_id)
        tagged(rule_tag(record))
        return await self._object(record, with_body=True)

    @RestCall("DELETE", _RULE, tokens=USER_OR_APPLICATION, on=_own, summary="Delete a rule")
    async def remove(self, record: RuleRecord) -> Data[RuleObject]:
        shown = await self._object(record, with_body=True)
        await self._rules.rulebook.remove(record)
        return Data(shown)

    @RestCall(
        "GET",
        f"{_RULE}/provision",
        tokens=USER_OR_APPLICATION,
        on=_shown,
        summary="A rule as a provision file",
        about="One table `[[rules]]`, to review it, keep it in git and apply it elsewhere.",
        answers=provision_answers(str, _PROVISION_EXAMPLE),
    )
    async def provision(self, record: RuleRecord) -> Answer:
        return provision_answer(rule_provision_text(record))

    @RestCall(
        "GET",
        f"{_RULE}/actions",
        tokens=USER_OR_APPLICATION,
        on=_shown,
        summary="Whether a rule can be tested",
        about="Whether POST would send its Actions: the rule is valid, every Action is static (without `matched` and "
        "without `valueFrom`), and the caller may send to every destination.",
    )
    async def testable(self, caller: Caller, record: RuleRecord) -> Data[Testable]:
        try:
            rule = await self._rules.names.compiled(record)
            await self._rules.access.require_write(caller, record, rule)
        except (ValidationFailed, PermissionDenied):
            return Data(Testable(testable=False))
        return Data(Testable(rule.is_static))

    @RestCall(
        "POST",
        f"{_RULE}/actions",
        tokens=USER_OR_APPLICATION,
        on=_shown,
        summary="Test a rule: send its Actions",
        about="If any Action is not static, nothing is sent.",
        refusals={400: "Rule is not testable", 403: "WRITE on a destination is missing."},
    )
    async def test(self, caller: Caller, record: RuleRecord) -> Data[Testable]:
        rule = await self._rules.names.compiled(record)
        await self._rules.access.require_write(caller, record, rule)
        await self._rules.trial_runs.run(record, rule)
        return Data(Testable(testable=True))

    @RestCall("GET", f"{_RULE}/executions", tokens=USER_OR_APPLICATION, on=_shown, summary="How often a rule triggered")
    async def executions(self, record: RuleRecord) -> Data[Executions]:
        triggered, last_on = await self._rules.statuses.executions(record)
        return Data(Executions(triggered) if last_on is None else Executions(triggered, last_on))

    @RestCall(
        "GET",
        f"{_RULE}/explain",
        tokens=USER_OR_APPLICATION,
        on=_shown,
        summary="Why a rule triggered, or did not",
        about="For one message, with `mid`, or for a time: which conditions held, with the values that were seen. For "
        "any message that is kept, also of the time before the rule. Needs READ on the sources. Models of conditions "
        "with a `transformer` are asked as they are now, not as they were then. With durations it looks back over at "
        "most 10,000 messages and 31 days.",
        refusals={404: "The message does not exist.", 409: _CANNOT_SIMULATE},
    )
    async def explain(
        self, caller: Caller, record: RuleRecord, query: ExplainMessageQuery | ExplainTimeQuery
    ) -> Data[Explanations]:
        rule = await self._rules.names.compiled(record)
        await self._rules.access.require_read(caller, record, rule)
        if isinstance(query, ExplainMessageQuery):
            found, until_ms = [await self._rules.explainer.of_message(record, rule, query.mid)], None
        else:
            start_ms, end_ms = Milliseconds(query.start_date), Milliseconds(query.end_date)
            found, until_ms = await self._rules.explainer.of_time(record, rule, start_ms, end_ms)
        shown = [why_object(one, None if one.row is None else self._mids.mid(one.row.position)) for one in found]
        return Data(Explanations(shown, until_ms is None, until=absent_if_none(until_ms)))

    @RestCall(
        "POST",
        f"{_RULE}/replay",
        tokens=USER_OR_APPLICATION,
        on=_shown,
        summary="Try a rule on what has happened",
        about="What the rule would have sent, and which alarms there would have been. "
        "Nothing is sent. Needs READ on the sources. Reads at most 10,000 "
        "messages; a rule that is not enabled can be tried, too. Models are asked as they are now.",
        refusals={409: _CANNOT_SIMULATE},
    )
    async def replay(self, caller: Caller, record: RuleRecord, body: ReplayBody) -> Data[ReplayObject]:
        rule = await self._rules.names.compiled(record)
        await self._rules.access.require_read(caller, record, rule)
        return await self._replayed(rule, body)

    @RestCall(
        "POST",
        "/rules/try",
        tokens=USER_OR_APPLICATION,
        on=NOTHING,
        summary="Try a rule before it is made",
        about="What a rule with this body would have sent, as `replay` says it. Nothing is stored or sent. It needs "
        "what making the rule needs: READ on the sources, WRITE on the destinations.",
        refusals={403: "A device or type is not the user's.", 404: "The user does not exist.", 409: _CANNOT_SIMULATE},
        body_limit=_BODY_BYTES,
    )
    async def try_out(self, caller: Caller, body: TryBody) -> Data[ReplayObject]:
        owner = await self._owner(caller, body.uid)
        return await self._replayed(await self._rules.rulebook.unsaved(caller, owner, bytes(body.rule)), body)

    async def _replayed(self, rule: CompiledRule, body: ReplayBody) -> Data[ReplayObject]:
        start_ms, end_ms = Milliseconds(body.start_date), Milliseconds(body.end_date)
        replayed = await self._rules.replays.run(rule, start_ms, end_ms)
        sent = [
            one
            for triggered in replayed.shown
            for one in triggered.outgoing
            if isinstance(one, SendAction | WantValues)
        ]
        keys = {one.device for one in (*sent, *(replayed.alarms or ()))}
        devices: dict[int, str] = {key: await self._devices.id_of(key) or "" for key in keys if key}
        of_alarms = [one.row for one in replayed.alarms or ()]
        rows = (row for row in (*(one.row for one in replayed.shown), *of_alarms) if row is not None)
        mids: dict[int, str] = {row.position: self._mids.mid(row.position) for row in rows}
        return Data(replay_object(replayed, mids, devices))
