"""Judges rules anew when a device that they name is deleted or not shared any more, or a Manifest changes."""

from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

import trio

from broker.facts import (
    DeviceCreated,
    DeviceDeleted,
    DeviceFact,
    DeviceHandedOver,
    DeviceTakenOver,
    DeviceTypeChanged,
    DeviceUpdated,
    FactPhase,
    Router,
    SharesChanged,
)
from broker.loops import Wakeup, repeat
from broker.rules.evaluator import Evaluator
from broker.rules.index import RuleIndex
from broker.rules.judging import Judging
from storage.database import Database, Transaction
from storage.keys import RuleKey
from storage.rules import UseKind

_Kind = UseKind | Literal["rule"]
_WAITING_MAX: Final = 10_000
_RETRY_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class InvalidationStatistics:
    """`invalidated`: rules that became invalid since the start."""

    invalidated: int
    waiting: int


class Invalidation:
    def __init__(
        self, database: Database, router: Router, judging: Judging, index: RuleIndex, evaluator: Evaluator
    ) -> None:
        self._database = database
        self._judging = judging
        self._index = index
        self._evaluator = evaluator
        self._waiting: dict[tuple[_Kind, int], None] = {}
        self._all_wait = False
        self._wakeup = Wakeup()
        self._invalidated = 0
        router.subscribe(DeviceCreated, self._members_changed, FactPhase.EFFECT)
        router.subscribe(DeviceDeleted, self._members_changed, FactPhase.EFFECT)
        router.subscribe(DeviceHandedOver, self._members_changed, FactPhase.EFFECT)
        router.subscribe(DeviceTakenOver, self._members_changed, FactPhase.EFFECT)
        router.subscribe(DeviceDeleted, self._device_changed, FactPhase.EFFECT)
        router.subscribe(DeviceUpdated, self._device_changed, FactPhase.EFFECT)
        router.subscribe(SharesChanged, self._device_changed, FactPhase.EFFECT)
        router.subscribe(DeviceTypeChanged, self._type_changed, FactPhase.EFFECT)

    def _members_changed(self, fact: DeviceFact) -> None:
        self._evaluator.forget_members(fact.owner, fact.device_type)
        for running in self._index.of_type(fact.owner, fact.device_type):
            if any(one.device_type == fact.device_type for one in running.rule.transformers):
                self._put("rule", running.key)  # each device of the type has a model of its own

    def _device_changed(self, fact: DeviceDeleted | DeviceUpdated | SharesChanged) -> None:
        self._put("device", fact.device)

    def _type_changed(self, fact: DeviceTypeChanged) -> None:
        self._put("type", fact.device_type)

    def _put(self, kind: _Kind, key: int) -> None:
        if len(self._waiting) < _WAITING_MAX:
            self._waiting[kind, key] = None
        else:
            self._all_wait = True
        self._wakeup.set()

    async def run_forever(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        # What was deleted just before a crash: rules that run are judged when they begin to, the others here.
        await repeat(
            self.step, wakeup=self._wakeup, at_once=True, failure="rules_not_judged", retry_seconds=_RETRY_SECONDS
        )

    async def step(self) -> bool:
        """Judge what waits; return whether more waits."""
        # Taken before the first wait: what comes meanwhile is for the next step.
        waiting, self._waiting = self._waiting, {}
        all_wait, self._all_wait = self._all_wait, False
        try:
            if all_wait:
                waiting.clear()
                await self._judging.begin_all()
            keys = set(await self._database.read(lambda tx: tx.rules.with_deleted_devices()))
            for one in waiting:
                keys |= set(await self._database.read(partial(_users_of, *one)))
            self._invalidated += await self._judging.judge(sorted(keys))
        except BaseException:  # whatever it is; raised again
            self._waiting |= waiting
            self._all_wait = self._all_wait or all_wait
            raise
        return bool(self._waiting) or self._all_wait

    def statistics(self) -> InvalidationStatistics:
        return InvalidationStatistics(self._invalidated, len(self._waiting))


def _users_of(kind: _Kind, key: int, tx: Transaction) -> list[RuleKey]:
    return [RuleKey(key)] if kind == "rule" else tx.rules.users_of(kind, key)
