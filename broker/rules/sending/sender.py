"""Carries out the effects of triggered rules: Actions, mails and HTTP requests (reference 12.2 and 12.4).

Actions go into the open group of the journal. Mails, requests, problems and the states of the rules are written by one
work of the same group, so all of it is durable together or not at all.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from broker.accounts.permissions import Permission, Permissions
from broker.alarms.changes import clear_all_of_rule
from broker.clock import Clock
from broker.device_types.catalog import DeviceType, DeviceTypes
from broker.devices.registry import Device, Devices
from broker.errors import DeviceNotFound, DomainError, ValidationFailed
from broker.mail import Letter, Mails, RuleMail, RuleStopped
from broker.messages.ingest import Ingest
from broker.rules.language.actions import CallHttp, NotSent, Outgoing, SendAction, SendMail, WantValues
from broker.rules.language.evaluation import RuleMatch
from broker.rules.language.rule import CompiledRule
from broker.rules.running.guards import NO_CAUSES, Causes, LoopGuard
from broker.rules.running.index import RunningRule, acting
from broker.rules.running.last_values import StateView, members_of
from broker.rules.sending.requests import HttpContent, RequestQueue
from broker.wanted.values import read_wanted
from broker.wanted.wanted import Before, Wanted, Wish
from storage.database import Database
from storage.keys import DeviceKey, DeviceTypeKey, Milliseconds, RuleKey, UserKey
from storage.rules import RuleProblem, RuleRecord
from storage.transaction import Transaction

TOO_MANY_MAILS: Final = "Not sent: more than 5 e-mails in a minute or 50 in a day"
TOO_MANY_REQUESTS: Final = "Not sent: more than 5 HTTP requests in a minute or 50 in a day"

_encode = msgspec.json.Encoder().encode


class Firing(msgspec.Struct, frozen=True):
    """A rule was triggered: by a message of `device`, or by the time. `causes` are the rules behind the message."""

    running: RunningRule
    at_ms: Milliseconds
    device: DeviceKey | None
    outgoing: Sequence[Outgoing]
    causes: Causes


class FiringProblem(msgspec.Struct, frozen=True):
    running: RunningRule
    field: str
    text: str
    at_ms: Milliseconds


class Stop(msgspec.Struct, frozen=True):
    """A rule must not run any more."""

    running: RunningRule
    at_ms: Milliseconds
    reason: str


@dataclass(slots=True)
class FiringBatch:
    """The effects that are written in one transaction beside the Actions."""

    letters: list[tuple[FiringProblem, Letter]] = field(default_factory=list)
    requests: list[tuple[FiringProblem, HttpContent]] = field(default_factory=list)
    problems: list[FiringProblem] = field(default_factory=list)
    stops: list[tuple[Stop, Letter | None]] = field(default_factory=list)
    wishes: list[tuple[Firing, str, Wish]] = field(default_factory=list)
    actions: int = 0
    #: The rules that may not read their sources any more.
    refused: set[RuleKey] = field(default_factory=set)


class Addressees(msgspec.Struct, frozen=True):
    """Devices, types and mail addresses that were looked up."""

    devices: Mapping[DeviceKey, Device | None]
    types: Mapping[DeviceTypeKey, DeviceType]
    mails: Mapping[UserKey, str]
    #: The reports of the devices of which values are to be wanted.
    reported: Mapping[DeviceKey, Before]


@dataclass(slots=True, eq=False, repr=False)
class RuleSender:
    _database: Database
    _devices: Devices
    _types: DeviceTypes
    _ingest: Ingest
    _mails: Mails
    _requests: RequestQueue
    _loops: LoopGuard
    _wanted: Wanted

    async def addressees(self, firings: Iterable[Firing], stops: Iterable[Stop]) -> Addressees:
        """Look up the receivers and contents."""
        owners = {stop.running.owner for stop in stops}
        keys: set[DeviceKey] = set()
        type_keys: set[DeviceTypeKey] = set()
        wanted: set[DeviceKey] = set()
        for firing in firings:
            keys |= firing.running.reads
            type_keys |= firing.running.type_reads
            if firing.device is not None:
                keys.add(firing.device)
            for one in firing.outgoing:
                if isinstance(one, SendAction | WantValues):
                    keys.add(one.device)
                    if isinstance(one, WantValues):
                        wanted.add(one.device)
                elif isinstance(one, SendMail) and not one.to:
                    owners.add(firing.running.owner)
        devices = {key: self._devices.get_nowait(key) or await self._device(key) for key in keys}
        types = {key: await self._types.get(key) for key in type_keys}
        mails = {} if not owners else await self._database.read(lambda tx: _mail_addresses(tx, owners))
        reported = {key: await self._wanted.before(key) for key in wanted}
        await self._ingest.wait_room()
        return Addressees(devices, types, mails, reported)

    async def _device(self, key: DeviceKey) -> Device | None:
        try:
            return await self._devices.get(key)
        except DeviceNotFound:
            return None

    def submit(
        self, firings: Iterable[Firing], stops: Iterable[Stop], known: Addressees, *, reads: bool = True
    ) -> FiringBatch:
        """Send the Actions, and collect the rest. Without a wait: everything is in one group with the next write.

        `reads`: the rule was evaluated, and needs READ on all its sources.
        """
        batch = FiringBatch()
        for firing in firings:
            if reads and (missing := _missing_read(firing, known)) is not None:
                batch.problems.append(_problem(firing, "rule.if", missing))
                batch.refused.add(firing.running.key)
                continue
            for one in firing.outgoing:
                try:
                    self._send(firing, one, known, batch)
                except DomainError as error:
                    batch.problems.append(_problem(firing, f"rule.then.{one.index}", error_text(error)))
        for stop in stops:
            batch.stops.append((stop, self._stop_letter(stop, known)))
        return batch

    def _send(self, firing: Firing, one: Outgoing, known: Addressees, batch: FiringBatch) -> None:
        """Raises DomainError."""
        field_, running = f"rule.then.{one.index}", firing.running
        match one:
            case NotSent():
                batch.problems.append(_problem(firing, field_, one.reason))
            case SendAction():
                device = known.devices.get(one.device)
                if device is None:
                    batch.problems.append(_problem(firing, field_, "the destination device does not exist"))
                elif not running.reach.allows(device, Permission.WRITE):
                    batch.problems.append(_problem(firing, field_, _missing(Permission.WRITE, device)))
                else:
                    self._ingest.submit_action(device, device, action_data(one))
                    self._loops.sent(running.key, device.key, firing.causes, firing.at_ms)
                    batch.actions += 1
            case WantValues():
                device = known.devices.get(one.device)
                if device is None:
                    batch.problems.append(_problem(firing, field_, "the destination device does not exist"))
                elif not running.reach.allows(device, Permission.WRITE):
                    batch.problems.append(_problem(firing, field_, _missing(Permission.WRITE, device)))
                else:
                    values = read_wanted(_encode(one.values), device.manifest.manifest)
                    author, reported = f"rule {running.id}", known.reported[one.device]
                    wish = Wish(device, values, one.expires_after, author, reported, is_noted=False)
                    batch.wishes.append((firing, field_, wish))
                    self._loops.sent(running.key, device.key, firing.causes, firing.at_ms)
                    batch.actions += 1
            case SendMail():
                to = one.to or known.mails.get(running.owner, "")
                mail = RuleMail(subject=one.subject, body=one.body)
                letter = self._mails.compose(to, mail, cause=f"user {running.owner_id}")
                batch.letters.append((_problem(firing, field_, TOO_MANY_MAILS), letter))
            case CallHttp():
                content = HttpContent(one.method, one.url, one.headers, one.body or "")
                batch.requests.append((_problem(firing, field_, TOO_MANY_REQUESTS), content))

    def _stop_letter(self, stop: Stop, known: Addressees) -> Letter | None:
        running = stop.running
        mail = RuleStopped(rule=running.name, rule_id=running.id, reason=stop.reason)
        try:
            return self._mails.compose(known.mails.get(running.owner, ""), mail, cause=f"user {running.owner_id}")
        except ValidationFailed:  # the user has no address
            return None

    def write(self, tx: Transaction, batch: FiringBatch, now_ms: Milliseconds) -> list[FiringProblem]:
        """Write the rest in the transaction of the Actions. Returns all problems, those with rates included."""
        problems = list(batch.problems)
        for firing, field_, wish in batch.wishes:
            try:
                self._wanted.put_in(tx, wish)
            except DomainError as error:
                problems.append(_problem(firing, field_, error_text(error)))
        problems += [exceeded for exceeded, letter in batch.letters if not self._mails.add(tx, letter)]
        for exceeded, content in batch.requests:
            running = exceeded.running
            if not self._requests.add(tx, running.key, running.owner, exceeded.field, content, now_ms):
                problems.append(exceeded)
        counted = Counter((one.running.key, one.field, one.text) for one in problems)
        last = {(one.running.key, one.field, one.text): one.at_ms for one in problems}
        tx.rules.note_problems([RuleProblem(*one, last[one], last[one], times) for one, times in counted.items()])
        for stop, stop_letter in batch.stops:
            tx.rules.stop(stop.running.key, stop.at_ms, stop.reason)
            clear_all_of_rule(tx, stop.running.key, at_ms=stop.at_ms)
            if stop_letter is not None:
                self._mails.add(tx, stop_letter)
        return problems


def _mail_addresses(tx: Transaction, users: Iterable[UserKey]) -> dict[UserKey, str]:
    return {key: user.email for key, user in tx.accounts.users_with(users).items()}


def error_text(error: DomainError) -> str:
    if not isinstance(error, ValidationFailed):
        return str(error)
    return "; ".join(f"{finding.field}: {', '.join(finding.messages)}" for finding in error.findings)


def action_data(action: SendAction) -> bytes:
    """`data` of an Action message."""
    return _encode({"actions": [{"name": action.name, "parameters": action.parameters}]})


def _problem(firing: Firing, field_: str, text: str) -> FiringProblem:
    return FiringProblem(firing.running, field_, text, firing.at_ms)


def _missing_read(firing: Firing, known: Addressees) -> str | None:
    """The first source that the rule may not read any more, as text; None: it may read all."""
    running = firing.running
    keys = running.reads if firing.device is None else (firing.device, *running.reads)
    for key in keys:
        device = known.devices.get(key)
        if device is not None and not running.reach.allows(device, Permission.READ):
            return _missing(Permission.READ, device)
    for key_of_type in running.type_reads:
        type_ = known.types[key_of_type].record
        if not running.reach.allows_type(running.owner, type_, Permission.READ):
            return f"You don't have the right permissions: READ on device type {type_.id}"
    return None


def _missing(permission: Permission, device: Device) -> str:
    return f"You don't have the right permissions: {permission.value} on device {device.id}"


@dataclass(eq=False)
class RuleNotTestable(DomainError):
    """An Action depends on messages: it has a `matched` selector or `valueFrom`."""

    status = 400
    template = "Rule is not testable"


@dataclass(eq=False)
class TrialRuns:
    """Sends the Actions of a rule once, because its owner asks for it (reference 12.1)."""

    _database: Database
    _clock: Clock
    _permissions: Permissions
    _sending: RuleSender
    _requests: RequestQueue

    async def run(self, record: RuleRecord, rule: CompiledRule) -> None:
        """Send all Actions. An Action that fails is a problem of the rule. Raises RuleNotTestable."""
        if not rule.is_static:
            raise RuleNotTestable
        now_ms = self._clock.now_ms()
        types = rule.type_writes
        members = await self._database.read(
            lambda tx: {(rule.owner, one): members_of(tx, rule.owner, one) for one in types}
        )
        view = StateView(now_ms, None, {}, members, lambda *_: None)
        running = RunningRule.made(record, rule, await self._permissions.reach(acting(record)), None)
        firing = Firing(running, now_ms, None, rule.outgoing(view, RuleMatch({})), NO_CAUSES)
        known = await self._sending.addressees([firing], ())
        batch = self._sending.submit([firing], (), known, reads=False)

        def work(tx: Transaction) -> list[FiringProblem]:
            return self._sending.write(tx, batch, now_ms)

        await self._database.write(work)
        self._requests.wake()
