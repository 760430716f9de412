"""Staged roll-outs: how many devices begin an update in a minute, canary devices first, and when to stop.

A `Rollout` is told when a device begins and when its device task ends, and says whether another one may begin. With an
`abort_percent` at most one batch is under way at a time: the devices that may begin in one minute. So the failures
exceed the bound by one batch at most.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Final

from broker.changes import Changes
from broker.clock import Clock
from broker.cluster.kinds import DeviceTaskMove
from broker.device_management.requests import RolloutPlan, decode_task_request
from broker.device_management.states import BEGUN, ENDED, DeviceTaskStatus
from broker.device_management.timers import Timers
from storage.database import Database
from storage.keys import DeviceKey
from storage.tasks import TaskRecord
from storage.transaction import Transaction

_MINUTE_MS: Final = 60_000
_BATCH: Final = 100  # devices under way at once, when only a bound of failures was given


class RolloutPhase(StrEnum):
    """How far a roll-out is. NONE: the task has no roll-out, or no canary devices."""

    NONE = ""
    CANARY = "CANARY"
    OPEN = "OPEN"
    PAUSED = "PAUSED"
    ABORTED = "ABORTED"


class Rollout:
    """The roll-out of one task."""

    def __init__(
        self,
        plan: RolloutPlan,
        phase: RolloutPhase,
        *,
        total: int,
        started: Mapping[str, int],
        begun: Sequence[int] = (),
    ) -> None:
        """`phase` is OPEN when there are no canary devices, or the operator let the roll-out go on without them.

        `started`: how many device tasks that have begun have each status. `begun`: when those of the last minute began,
        in order.
        """
        self.plan = plan
        self.total = total
        self.started = sum(started.values())
        self.ended = sum(started.get(status, 0) for status in ENDED)
        self.succeeded = started.get(DeviceTaskStatus.SUCCEEDED, 0)
        self.failed = started.get(DeviceTaskStatus.FAILED, 0)
        self.running = sum(started.get(status, 0) for status in BEGUN)
        self._begun = deque(begun)
        #: Connected devices that wait for their turn, in the order in which they asked.
        self.held: dict[DeviceKey, None] = {}
        # More than the canary devices have begun: their result was good.
        self.phase = RolloutPhase.OPEN if self.started > (plan.canary_devices or 0) else phase
        self._judge()

    @property
    def batch(self) -> int | None:
        """How many devices may be under way at once; None for any number."""
        return None if self.plan.abort_percent is None else self.plan.devices_per_minute or _BATCH

    @property
    def is_aborted(self) -> bool:
        return self.phase is RolloutPhase.ABORTED

    def may_begin(self, now_ms: int, *, again: bool = False) -> bool:
        """Whether another device may begin. `again`: it had begun before, and its connection failed."""
        if self.phase is RolloutPhase.ABORTED or (self.phase is RolloutPhase.PAUSED and not again):
            return False
        if self.batch is not None and self.running >= self.batch:
            return False
        if again:
            return True
        if self.phase is RolloutPhase.CANARY and self.started >= (self.plan.canary_devices or 0):
            return False
        return self.plan.devices_per_minute is None or self._in_this_minute(now_ms) < self.plan.devices_per_minute

    def _in_this_minute(self, now_ms: int) -> int:
        while self._begun and self._begun[0] <= now_ms - _MINUTE_MS:
            self._begun.popleft()
        return len(self._begun)

    def next_minute(self, now_ms: int) -> int | None:
        """The time at which the rate allows the next device to begin; None: now."""
        if self.plan.devices_per_minute is None or self._in_this_minute(now_ms) < self.plan.devices_per_minute:
            return None
        return self._begun[0] + _MINUTE_MS

    def room(self, now_ms: int) -> int:
        """How many devices may begin now."""
        if not self.may_begin(now_ms):
            return 0
        rooms = [len(self.held)]
        if self.plan.devices_per_minute is not None:
            rooms.append(self.plan.devices_per_minute - self._in_this_minute(now_ms))
        if self.batch is not None:
            rooms.append(self.batch - self.running)
        if self.phase is RolloutPhase.CANARY:
            rooms.append((self.plan.canary_devices or 0) - self.started)
        return min(rooms)

    def begin(self, now_ms: int, *, again: bool = False) -> None:
        self.running += 1
        if not again:
            self.started += 1
            self._begun.append(now_ms)

    def undo_begin(self, *, again: bool = False) -> None:
        """Take back a `begin`: the device task had been cancelled."""
        self.running -= 1
        if not again:
            self.started -= 1
            self._begun.pop()

    def put_back(self) -> None:
        """The connection failed, and the device task waits again."""
        self.running -= 1

    def end(self, status: DeviceTaskStatus, *, was_running: bool) -> None:
        """A device task that had begun has ended."""
        self.running -= was_running
        self.ended += 1
        self.succeeded += status is DeviceTaskStatus.SUCCEEDED
        self.failed += status is DeviceTaskStatus.FAILED
        self._judge()

    def _judge(self) -> None:
        if self.plan.abort_percent is not None and 100 * self.failed > self.plan.abort_percent * self.total:
            self.phase = RolloutPhase.ABORTED
        elif self.phase is RolloutPhase.CANARY and self.ended >= (self.plan.canary_devices or 0):
            enough = 100 * self.succeeded >= self.plan.canary_success_percent * self.ended
            self.phase = RolloutPhase.OPEN if enough else RolloutPhase.PAUSED


def first_phase(plan: RolloutPlan | None) -> RolloutPhase:
    if plan is None:
        return RolloutPhase.NONE
    return RolloutPhase.OPEN if plan.canary_devices is None else RolloutPhase.CANARY


@dataclass(eq=False)
class Rollouts:
    """The roll-outs of the tasks that are under way, and the devices that wait for their turn in them.

    `wake` lets a device look for its next device task, and answers whether it is connected. `stop` cancels the
    device tasks of a task that have not begun. `is_shared`: devices of other nodes begin, too, so that the store
    decides (`may_begin`), and what is known here only says when to ask it.
    """

    _database: Database
    _clock: Clock
    _timers: Timers
    _wake: Callable[[DeviceKey], bool]
    _stop: Callable[[int], None]
    _is_shared: bool = False
    _known: dict[int, Rollout] = field(default_factory=dict, init=False)
    _changes: Changes = field(default_factory=Changes, init=False)

    async def of(self, task: TaskRecord) -> Rollout | None:
        """The roll-out of a task; None for a task without one."""
        if decode_task_request(task.request).rollout is None:
            return None
        if not self._is_shared and (known := self._known.get(task.key)) is not None:
            return known

        async def read() -> Rollout | None:
            return await self._database.read(partial(self._read, task))

        if not self._is_shared:
            built = await self._changes.settled(read)
            return None if built is None else self._known.setdefault(task.key, built)
        if (built := await read()) is None:
            return None
        if (former := self._known.get(task.key)) is not None:
            built.held = former.held
        self._known[task.key] = built
        return built

    def _read(self, task: TaskRecord, tx: Transaction) -> Rollout | None:
        """The roll-out as the store has it."""
        plan = decode_task_request(task.request).rollout
        if plan is None:
            return None
        phase = task.phase if (now := tx.tasks.task(task.key)) is None else now.phase
        ahead_ms = self._clock.now_ms() - self._clock.steady_ms()
        since_ms = self._clock.now_ms() - _MINUTE_MS
        begun = [] if plan.devices_per_minute is None else tx.tasks.begun_since(task.key, since_ms)
        return Rollout(
            plan,
            RolloutPhase(phase),
            total=sum(tx.tasks.counts(task.key).values()),
            started=tx.tasks.begun_counts(task.key),
            begun=[at_ms - ahead_ms for at_ms in begun],
        )

    def may_begin(self, tx: Transaction, task: TaskRecord, *, again: bool) -> bool:
        """Whether another device may begin, on whatever node the others are, in the transaction in which it does."""
        if not self._is_shared:
            return True
        rollout = self._read(task, tx)
        return rollout is None or rollout.may_begin(self._clock.steady_ms(), again=again)

    def hold(self, rollout: Rollout, task: int, device: DeviceKey) -> None:
        """The device waits for its turn: others have begun on other nodes."""
        rollout.held[device] = None
        self._look_again(rollout, task)

    def admit(self, rollout: Rollout, task: int, device: DeviceKey, *, again: bool) -> bool:
        """Whether the device may begin now; it has then begun. Otherwise it is woken when its turn has come."""
        now_ms = self._clock.steady_ms()
        if rollout.may_begin(now_ms, again=again):
            rollout.held.pop(device, None)
            rollout.begin(now_ms, again=again)
            self._look_again(rollout, task)
            return True
        rollout.held[device] = None
        self._look_again(rollout, task)
        return False

    def _look_again(self, rollout: Rollout, task: int) -> None:
        """Look when the rate lets the next device begin. A device that is woken may not use its turn, so look then,
        too, when there is room now."""
        if rollout.held and rollout.phase in {RolloutPhase.CANARY, RolloutPhase.OPEN}:
            now_ms = self._clock.steady_ms()
            at_ms = rollout.next_minute(now_ms) or now_ms + _MINUTE_MS
            self._timers.set(("rollout", task), at_ms, partial(self._wake_held, task))

    def _wake_held(self, task: int) -> None:
        """Wake as many waiting devices as may begin. One that is not connected asks again when it registers."""
        if (rollout := self._known.get(task)) is None:
            return
        room = rollout.room(self._clock.steady_ms())
        if self._is_shared:  # this node may count too much
            room = max(room, 1)
        while room > 0 and rollout.held:
            device = next(iter(rollout.held))
            del rollout.held[device]
            room -= self._wake(device)
        self._look_again(rollout, task)

    def settled(self, moved: DeviceTaskMove) -> None:
        """A device task has changed."""
        self._changes.note()
        rollout = self._known.get(moved.after.task)
        if rollout is None or moved.before.started_on is None:
            return
        was_running = moved.before.status in BEGUN
        if moved.after.status in ENDED:
            rollout.end(DeviceTaskStatus(moved.after.status), was_running=was_running)
        elif was_running and moved.after.status == DeviceTaskStatus.QUEUED:
            rollout.put_back()
        if rollout.phase is RolloutPhase.ABORTED:
            self._stop(moved.after.task)
        else:
            self._wake_held(moved.after.task)
        if self._is_shared and not rollout.held and rollout.ended >= rollout.total:
            self._known.pop(moved.after.task, None)

    def forget(self, task: int) -> None:
        """Forget a task that has ended or whose phase was changed in the store: its devices are read again."""
        held = self._known.pop(task, None)
        for device in () if held is None else held.held:
            self._wake(device)

    def __len__(self) -> int:
        return len(self._known)
