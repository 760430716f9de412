"""Takes tasks from their creation to their end (reference 15.2).

The store has the state. Work at a later time (schedules, expiries, polls, roll-outs) waits in `Timers`; work for
registered devices is in `DeviceWork`, which each of several nodes has for its own ones. One of them, with the lease,
queues tasks, and has their clock.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import msgspec
import structlog
import trio

from broker.cluster.kinds import (
    DEVICE_TASK_MOVED,
    DEVICES_HAVE_TASKS,
    NODE_BURIED,
    ROLLOUT_CHANGED,
    TASK_ADDED,
    DeviceTaskMove,
    publish,
)
from broker.core import Core
from broker.device_management.configuration import Configurations
from broker.device_management.device_actions import DeviceActions
from broker.device_management.device_work import DeviceWork
from broker.device_management.operations import Operations
from broker.device_management.properties import DeviceProperties
from broker.device_management.queueing import (
    BATCH,
    QueuedDevices,
    cancel_some,
    expire_some,
    fail_all_of_device,
    fix_devices,
    queue_some,
)
from broker.device_management.reports import Reports
from broker.device_management.sessions import ManagedSession, ObservationSettings, Readings, latest
from broker.device_management.shared_registrations import SharedRegistrations
from broker.device_management.states import (
    BEGUN,
    ENDED,
    OPEN,
    TASK_UNFINISHED,
    DeviceTaskStatus,
    ErrorCode,
    TaskFailure,
    TaskStatus,
    move_task,
    put_back,
)
from broker.device_management.timers import Timers
from broker.device_management.wanted_writes import WantedWrites
from broker.devices.presence import Presence
from broker.devices.registry import Device
from broker.facts import DeviceDeleted, FactPhase, TaskProgressed
from broker.loops import Loop, Wakeup
from storage.keys import DeviceKey, Milliseconds
from storage.outages import Outage
from storage.sql import ALL_ROWS, StoreError
from storage.tasks import TaskRecord
from storage.transaction import Transaction

_STORE_SECONDS: Final = 5
_DELETED: Final = TaskFailure(ErrorCode.DEVICE_DELETED, "The device was deleted.")
_STOPPED: Final = TaskFailure(ErrorCode.DEVICE_TIMEOUT, "The service stopped during the operation.")
_ABORTED: Final = TaskFailure(ErrorCode.ROLLOUT_ABORTED, "Too many devices failed, so the roll-out stopped.")
_log = structlog.get_logger(__name__)


class TaskStatistics(msgspec.Struct, frozen=True):
    """Device tasks that ended or were tried again since the start; sessions, work and timers of this moment."""

    sessions: int
    working: int
    timers: int
    succeeded: int
    failed: int
    cancelled: int
    tried_again: int


class ManagementEngine:
    """Implements `Registrations` of `sessions`."""

    def __init__(
        self,
        core: Core,
        presence: Presence,
        configurations: Configurations,
        properties: DeviceProperties,
        reports: Reports,
        operations: Operations,
        actions: DeviceActions,
        wanted: WantedWrites,
        shared: SharedRegistrations | None = None,
    ) -> None:
        self._database, self._clock = core.database, core.clock
        self._presence = presence
        self._configurations = configurations
        self._properties = properties
        self._reports = reports
        self._actions = actions
        self._wanted = wanted
        self._shared = shared
        self._timers = Timers(core.clock.now_ms)  # schedules and expiries, which people name
        self._waits = Timers(core.clock.steady_ms)  # durations, which changes of the wall clock do not affect
        self.work = DeviceWork(
            core.database,
            core.clock,
            self._waits,
            configurations,
            operations,
            core.site.image_root,
            self._stop_rollout,
            shared,
        )
        self._wakeup = Wakeup()
        self._is_open = core.peers is None  # takes tasks
        self._nursery: trio.Nursery | None = None
        self._of_devices: trio.Nursery | None = None
        self._outage = Outage("task_not_saved")
        self._ended = dict.fromkeys(ENDED, 0)
        self._tried_again = 0
        core.router.subscribe(DeviceDeleted, self._device_deleted, FactPhase.EFFECT)
        core.news.listen(TASK_ADDED, self._task_added)
        core.news.listen(ROLLOUT_CHANGED, self._rollout_changed)
        core.news.listen(DEVICE_TASK_MOVED, self._settled)
        core.news.listen(DEVICES_HAVE_TASKS, self._wake)
        core.news.listen_elsewhere(DEVICE_TASK_MOVED, self._settled_elsewhere)
        core.news.listen_elsewhere(TASK_ADDED, self._changed_elsewhere)
        core.news.listen(NODE_BURIED, self._node_buried)

    # Registrations

    async def observation_of(self, device: Device) -> ObservationSettings:
        found = await self._configurations.of(device.type)
        manifest = device.manifest.manifest
        paths = tuple(dict.fromkeys(manifest.resources.values()))
        settable = frozenset(one.lwm2m for one in manifest.leaves.values() if one.settable and one.lwm2m is not None)
        return ObservationSettings(found.device_properties_enabled, found.pmin, found.pmax, paths, settable)

    def begin(self, session: ManagedSession) -> None:
        self._actions.begin(session)

    async def begun(self, session: ManagedSession) -> None:
        await self._actions.begun(session)

    async def admit(self, device: Device) -> None:
        await self._properties.note_registration(device.key)

    async def registered(self, session: ManagedSession) -> None:
        if not session.is_over:
            self.work.connected(session)
            self._actions.connected(session)
            self._wanted.connected(session)

    def ended(self, session: ManagedSession) -> None:
        self.work.disconnected(session)
        self._actions.disconnected(session)
        self._wanted.disconnected(session)
        if self._shared is not None:
            self._shared.end(session)

    async def receive_values(self, device: Device, readings: Readings, *, is_read: bool = False) -> None:
        is_kept = (await self._configurations.of(device.type)).device_properties_enabled
        if is_kept or device.manifest.manifest.resources:
            await self._reports.take(device, readings, is_kept=is_kept, is_read=is_read)
        self.work.said(device.key, latest(readings))
        if self._shared is not None and (session := self._actions.session_of(device.key)) is not None:
            self._shared.note(session)

    def receive_unreadable(self, device: Device, payload: bytes, reason: str) -> None:
        self._reports.keep_unreadable(device, payload, reason)

    # Tasks

    def _task_added(self, _key: int, task: TaskRecord | None) -> None:
        if task is not None and self._is_open and task.status != TaskStatus.CANCELLED:
            self._added(task)

    def _added(self, task: TaskRecord) -> None:
        """A task begins now or at its time, and ends at the latest when it expires."""
        self._timers.set(("expiry", task.key), task.expires_on, partial(self._begin_expiry, task.key))
        if task.scheduled_on is not None and task.status == TaskStatus.SCHEDULED:
            begin = partial(self._start, ("schedule", task.key), partial(self._schedule_reached, task.key))
            self._timers.set(("schedule", task.key), task.scheduled_on, begin)
        self._wakeup.set()

    def _changed_elsewhere(self, key: int, task: TaskRecord | None) -> None:
        """Should the node that cancels a task end before it has cancelled all of it, this one does."""
        if task is not None and task.status == TaskStatus.CANCELLED:
            self._start(("cancel", key), partial(self.cancel_device_tasks, key))

    def _wake(self, devices: tuple[DeviceKey, ...], _content: None) -> None:
        for device in devices:
            self.work.wake(device)

    def _node_buried(self, _node: str, _content: None) -> None:
        self._start(("buried", 0), self._put_back_interrupted)

    async def _put_back_interrupted(self) -> None:
        now_ms = self._clock.now_ms()
        await self._database.write(partial(_put_back_interrupted, self._shared is not None, now_ms))

    async def _put_back_own(self) -> None:
        """This node stops, and is not buried: nobody else knows that its operations have ended."""
        now_ms, instance = self._clock.now_ms(), "" if self._shared is None else self._shared.instance
        with trio.move_on_after(_STORE_SECONDS, shield=True):
            try:
                await self._database.write(lambda tx: _put_back(tx, lambda holder: holder == instance, now_ms))
            except StoreError as error:  # the node that takes the tasks on does it
                _log.warning("device_tasks_not_put_back", reason=str(error))

    def _rollout_changed(self, task: int, _content: None) -> None:
        self.work.rollouts.forget(task)

    async def cancel_device_tasks(self, task: int) -> None:
        """Cancel what has not ended of a cancelled task."""
        self._timers.cancel(("schedule", task))
        await self._in_batches(task, partial(cancel_some, failure=None))

    async def _schedule_reached(self, task: int) -> None:
        now_ms = self._clock.now_ms()

        def work(tx: Transaction) -> None:
            move_task(tx, task, TaskStatus.REQUESTED, now_ms)
            publish(tx, TaskProgressed(task))

        await self._database.write(work)
        self._wakeup.set()

    def _begin_expiry(self, task: int) -> None:
        self._start(("expiry", task), partial(self._expire, task))

    async def _expire(self, task: int) -> None:
        await self._in_batches(task, expire_some)
        self.work.rollouts.forget(task)

    def _stop_rollout(self, task: int) -> None:
        """Each node does this that knows of the roll-out: the one with the lease may have none of its devices."""
        if self._of_devices is not None:
            self._of_devices.start_soon(self._run, ("stop", task), partial(self._stop, task))

    async def _stop(self, task: int) -> None:
        record = await self._database.read(lambda tx: tx.tasks.task(task))
        rollout = None if record is None else await self.work.rollouts.of(record)
        if rollout is not None and rollout.is_aborted:  # this node may count too much
            await self._in_batches(task, partial(cancel_some, failure=_ABORTED))

    async def _in_batches(self, task: int, change: Callable[..., int]) -> None:
        """Change the device tasks of a task, a bounded number in each transaction."""
        while True:
            now_ms = self._clock.now_ms()
            moved = await self._database.write(
                lambda tx, now_ms=now_ms: change(tx, task, now_ms)  # type: ignore[misc]
            )
            if moved < BATCH:
                return

    def _start(self, name: tuple[str, int], job: Callable[[], Awaitable[None]]) -> None:
        if self._nursery is not None:
            self._nursery.start_soon(self._run, name, job)

    async def _run(self, name: tuple[str, int], job: Callable[[], Awaitable[None]]) -> None:
        try:
            await job()
        except StoreError as error:
            self._outage.failed(error, job=name)
            at_ms = self._clock.steady_ms() + _STORE_SECONDS * 1000
            self._waits.set(name, at_ms, partial(self._start, name, job))
        else:
            self._outage.succeeded()

    def _settled_elsewhere(self, moved: DeviceTaskMove, _content: None) -> None:
        """Another node counts it."""
        self._count(moved, -1)

    def _count(self, moved: DeviceTaskMove, number: int) -> None:
        status = DeviceTaskStatus(moved.after.status)
        if status in ENDED:
            self._ended[status] += number
        elif status is DeviceTaskStatus.QUEUED and moved.before.status in BEGUN:
            self._tried_again += number

    def _settled(self, moved: DeviceTaskMove, _content: None) -> None:
        """A step of a device task has ended."""
        status = DeviceTaskStatus(moved.after.status)
        self._count(moved, 1)
        if status in ENDED:
            self.work.stop_operation(moved.after.key, moved.after.device)
        elif status is DeviceTaskStatus.CANCEL_REQUESTED:
            self.work.wake(moved.after.device)
        self.work.rollouts.settled(moved)

    def _device_deleted(self, fact: DeviceDeleted) -> None:
        self.work.drop(fact.device)
        self._start(("deleted", fact.device), partial(self._end_all_of, fact.device))

    async def _end_all_of(self, device: DeviceKey) -> None:
        now_ms = self._clock.now_ms()
        await self._database.write(lambda tx: fail_all_of_device(tx, device, _DELETED, now_ms))

    # The worker

    def forget_all(self) -> None:
        """Another node takes the tasks on."""
        self._is_open = False
        self._timers.clear()

    async def run_forever(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        self._is_open = True
        await self._resume()
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                nursery.start_soon(self._timers.run_forever)
                task_status.started()
                await Loop(
                    self._queue_next,
                    wakeup=self._wakeup,
                    at_once=True,
                    failure="task_not_queued",
                    retry_seconds=_STORE_SECONDS,
                ).run()
            finally:
                self._nursery = None

    async def work_forever(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Carry out the device tasks of the devices that are registered here."""
        try:
            async with trio.open_nursery() as nursery:
                self._of_devices = nursery
                self.work.begin_in(nursery)
                nursery.start_soon(self._waits.run_forever)
                if self._shared is not None:  # an earlier process of this node may have ended without being buried
                    nursery.start_soon(self._run, ("interrupted", 0), self._put_back_interrupted)
                task_status.started()
                try:
                    await trio.sleep_forever()
                finally:
                    self._of_devices = None
                    self.work.end()
        finally:
            if self._shared is not None:
                await self._put_back_own()

    async def _resume(self) -> None:
        """Go on where the last run stopped. Operations that were under way then are tried again."""
        await self._put_back_interrupted()
        for device in await self._database.read(lambda tx: tx.tasks.deleted_devices(OPEN)):
            self._timers.set(
                ("deleted", device), 0, partial(self._start, ("deleted", device), partial(self._end_all_of, device))
            )
        for task in await self._database.read(_unfinished):
            self._added(task)
            if task.status == TaskStatus.CANCELLED:
                cancel = partial(self._start, ("cancel", task.key), partial(self.cancel_device_tasks, task.key))
                self._timers.set(("cancel", task.key), 0, cancel)
            elif (rollout := await self.work.rollouts.of(task)) is not None and rollout.is_aborted:
                self._timers.set(("stop", task.key), 0, partial(self._stop_rollout, task.key))

    async def _queue_next(self) -> bool:
        """Queue the device tasks of the oldest task that has none yet."""
        task = await self._database.read(
            lambda tx: tx.tasks.first_with_status((TaskStatus.REQUESTED, TaskStatus.QUEUING))
        )
        if task is None:
            return False
        if task.status == TaskStatus.REQUESTED:
            await self._presence.flush()  # the filter may ask for connections
            await self._database.write(lambda tx: fix_devices(tx, task.key, self._clock.now_ms()))
        is_last = False
        while not is_last:
            queued = await self._database.write(partial(_queue_some, task.key, self._clock.now_ms()))
            is_last = queued.is_last
        if task.expires_on <= self._clock.now_ms():  # its timer came while it was being queued
            self._begin_expiry(task.key)
        return True

    def statistics(self) -> TaskStatistics:
        succeeded, failed, cancelled = (self._ended[status] for status in ENDED)
        return TaskStatistics(
            self.work.sessions,
            self.work.working,
            len(self._timers) + len(self._waits),
            succeeded,
            failed,
            cancelled,
            self._tried_again,
        )


def _queue_some(task: int, now_ms: Milliseconds, tx: Transaction) -> QueuedDevices:
    publish(tx, TaskProgressed(task))
    queued = queue_some(tx, task, now_ms)
    if queued.devices:
        tx.tell(DEVICES_HAVE_TASKS, queued.devices)
    return queued


def _unfinished(tx: Transaction) -> list[TaskRecord]:
    """The tasks that have not ended, and those with a device task that has not."""
    tasks = {task.key: task for task in tx.tasks.with_status(TASK_UNFINISHED)}
    return [*tasks.values(), *tx.tasks.tasks(tx.tasks.tasks_with_entries(OPEN) - tasks.keys())]


def _put_back_interrupted(is_shared: bool, now_ms: Milliseconds, tx: Transaction) -> None:
    """With `is_shared` operations of nodes that live are still under way."""
    living = {node.instance for node in tx.leases.nodes()} if is_shared else set[str]()
    _put_back(tx, lambda holder: holder not in living, now_ms)


def _put_back(tx: Transaction, is_of: Callable[[str], bool], now_ms: Milliseconds) -> None:
    """Operations of holders that have ended. An update goes on by itself; any other operation that was under way has an
    unknown outcome. A device that has registered with another node since is asked again there."""
    devices = []
    for task in tx.tasks.tasks(tx.tasks.tasks_with_entries(BEGUN)):
        if task.image is None:
            for entry in tx.tasks.entries_with(task.key, BEGUN, limit=ALL_ROWS):
                if is_of(entry.holder):
                    put_back(tx, entry.key, _STOPPED, now_ms)
                    devices.append(entry.device)
    if devices:
        tx.tell(DEVICES_HAVE_TASKS, tuple(devices))
