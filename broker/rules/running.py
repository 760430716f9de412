"""One rule that runs: the compiled rule, and what is remembered of it between evaluations."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from broker.accounts.permissions import Reach
from broker.accounts.tokens import Caller, TokenKind
from broker.rules.rule import Rule, Timer, TimerKey
from storage.keys import DeviceKey, DeviceTypeKey, Milliseconds, Position, RuleKey, UserKey
from storage.rules import RuleRecord, RuleState


class _Timer(msgspec.Struct, array_like=True):
    condition: int
    device: DeviceKey
    since_ms: Milliseconds
    due_ms: Milliseconds
    elapsed: bool
    spent: bool


class _Memory(msgspec.Struct, omit_defaults=True):
    timers: list[_Timer] = []
    minute: Milliseconds | None = None


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Memory).decode


@dataclass(slots=True, eq=False)
class RunningRule:
    """`minute` is the last one at which the rule was evaluated because of its `datetime` conditions."""

    rule: Rule
    key: RuleKey
    id: str
    name: str
    owner: UserKey
    owner_id: str
    since: Position
    revision: int
    reach: Reach
    timers: dict[TimerKey, Timer] = field(default_factory=dict)
    minute: Milliseconds | None = None
    #: What the owner needs READ on whenever it triggers.
    reads: frozenset[DeviceKey] = frozenset()
    type_reads: frozenset[DeviceTypeKey] = frozenset()
    #: It may look at all devices of a type, so that its time is measured.
    is_costly: bool = False
    triggered: int = 0
    last_on: Milliseconds | None = None
    failing: bool = False

    @classmethod
    def made(cls, record: RuleRecord, rule: Rule, reach: Reach, state: RuleState | None) -> "RunningRule":
        running = cls(
            rule,
            record.key,
            record.id,
            record.name,
            record.owner,
            record.owner_id,
            record.since,
            record.revision,
            reach,
            reads=rule.reads,
            type_reads=rule.type_reads,
            is_costly=bool(rule.type_reads or rule.type_writes),
        )
        if state is not None:
            running.triggered, running.last_on, running.failing = state.triggered, state.last_on, state.failing
            running.timers, running.minute = remembered(state)
        return running

    @property
    def state(self) -> RuleState:
        """What is stored of it."""
        timers = [_Timer(*key, one.since_ms, one.due_ms, one.elapsed, one.spent) for key, one in self.timers.items()]
        memory = _encode(_Memory(timers, self.minute)).decode()
        return RuleState(self.key, self.revision, self.triggered, self.last_on, self.failing, memory)


def remembered(state: RuleState) -> tuple[dict[TimerKey, Timer], Milliseconds | None]:
    """The timers and the last minute of a stored state."""
    if not state.memory:
        return {}, None
    memory = _decode(state.memory)
    timers = {
        (one.condition, one.device): Timer(one.since_ms, one.due_ms, one.elapsed, one.spent) for one in memory.timers
    }
    return timers, memory.minute


def acting(record: RuleRecord) -> Caller:
    """The rule as a caller: its owner, through the application that made it."""
    return Caller(
        kind=TokenKind.USER,
        token=b"",
        expires_on=None,
        user=record.owner,
        user_id=record.owner_id,
        application=record.application,
        application_id=record.application_id,
        application_organization=record.application_organization,
    )


def through(caller: Caller, record: RuleRecord) -> Caller:
    """The rule's owner through the application of a caller."""
    return replace(
        acting(record),
        application=caller.application,
        application_id=caller.application_id,
        application_organization=caller.application_organization,
    )


NO_TIMERS: Final[Mapping[TimerKey, Timer]] = {}
