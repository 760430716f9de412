"""The calls on tasks: creation, lists, cancelling, acceptance (reference 15.2)."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec.structs import replace

from broker.clock import Clock
from broker.cluster.kinds import DEVICES_HAVE_TASKS, ROLLOUT_CHANGED, TASK_ADDED, publish
from broker.device_management.configuration import Configurations
from broker.device_management.engine import ManagementEngine
from broker.device_management.objects import ObjectMap
from broker.device_management.properties import parse_filter
from broker.device_management.queueing import tell_move
from broker.device_management.requests import TaskRequest, check_task_request, decode_task_request, encode_task_request
from broker.device_management.rollouts import RolloutPhase, first_phase
from broker.device_management.states import (
    ENDED,
    OPEN,
    TASK_UNFINISHED,
    Acceptance,
    ErrorCode,
    TaskFailure,
    TaskStatus,
    cancel,
    fail,
    move_task,
)
from broker.device_types.catalog import DeviceType
from broker.devices.registry import Device
from broker.errors import Conflict, DeviceNotFound, Finding, NotFound, ValidationFailed, invalid
from broker.facts import TaskProgressed
from broker.ids import new_id
from broker.site import IMAGE_PROTOCOLS
from broker.trace.audit import AuditEvent, note
from config.limits import TASKS_OPEN_MAX
from storage.database import Database
from storage.keys import DeviceKey, DeviceTypeKey, Milliseconds, OrganizationKey
from storage.tasks import DeviceTaskRecord, TaskHistoryRecord, TaskRecord
from storage.transaction import Transaction

TASK_ENDED: Final = "Task has ended"
TOO_MANY_TASKS: Final = f"At most {TASKS_OPEN_MAX} tasks of a device type at a time"
NOT_WAITING: Final = "Update does not wait for acceptance"
NOT_PAUSED: Final = "Roll-out is not paused"
FAILED_KEPT_DAYS: Final = 7
_DAY_MS: Final = 86_400_000
_HISTORY_ROWS: Final = 10_000
_REJECTED: Final = TaskFailure(ErrorCode.UPDATE_REJECTED, "The owner of the device rejected the update.")


class StatusCounts(msgspec.Struct, frozen=True):
    """Device tasks of a task."""

    total: int
    completed: int
    succeeded: int
    failed: int
    cancelled: int


class Task(msgspec.Struct, frozen=True):
    """A task as it is shown."""

    record: TaskRecord
    request: TaskRequest
    counts: StatusCounts


class TaskPage(msgspec.Struct, frozen=True):
    """`status`, `sort` and the order of a list of tasks, and which part of it."""

    offset: int
    count: int
    status: str | None = None
    sort: str = "created_on"
    descending: bool = True


@dataclass(slots=True, eq=False, repr=False)
class Tasks:
    """`image_root`: where images are by a protocol; None when nothing listens for it."""

    _database: Database
    _clock: Clock
    _configurations: Configurations
    _objects: ObjectMap
    _engine: ManagementEngine
    _image_root: Callable[[str | None], str | None]

    async def create(self, type_: DeviceType, request: TaskRequest, *, scheduled_on: Milliseconds | None) -> Task:
        """Create a task; it begins at once or at its time. `expires_after` 0 stands for that of the type.

        Raises ValidationFailed; NotFound for an unknown device or image; Conflict when the type has too many tasks.
        """
        now_ms = self._clock.now_ms()
        configuration = await self._configurations.of(type_)
        if request.expires_after == 0:
            request = msgspec.structs.replace(request, expires_after=configuration.task_expires_after)
        check_task_request(
            request,
            self._objects,
            scheduled_on=scheduled_on,
            now_ms=now_ms,
            properties_enabled=configuration.device_properties_enabled,
        )
        parse_filter(request.filter or "")
        if request.protocol is not None and request.protocol not in IMAGE_PROTOCOLS:
            known = invalid(f"expected one of {', '.join(IMAGE_PROTOCOLS)}")
            raise ValidationFailed.of("taskParameters.update.protocol", known)
        if self._image_root(request.protocol) is None:
            absent = invalid(f"nothing listens for {request.protocol}")
            raise ValidationFailed.of("taskParameters.update.protocol", absent)
        record = TaskRecord(
            key=0,
            id=new_id(),
            device_type=type_.record.key,
            request=encode_task_request(request),
            status=TaskStatus.REQUESTED if scheduled_on is None else TaskStatus.SCHEDULED,
            created_on=now_ms,
            modified_on=now_ms,
            scheduled_on=scheduled_on,
            expires_on=Milliseconds((scheduled_on or now_ms) + request.expires_after * 1000),
            image=request.update_id if request.is_update else None,
            phase=first_phase(request.rollout),
        )

        def add(tx: Transaction) -> TaskRecord:
            _check_references(tx, request, type_.record.key)
            if tx.tasks.count_with_status(type_.record.key, TASK_UNFINISHED) >= TASKS_OPEN_MAX:
                raise Conflict(TOO_MANY_TASKS)
            note(
                tx,
                AuditEvent.TASK_CREATED,
                f"task {record.id}",
                now_ms=now_ms,
                device_type=type_.record.id,
                operation=request.operation,
                property=request.target,
                image=record.image,
            )
            added = tx.tasks.add(record)
            tx.tell(TASK_ADDED, added.key)
            publish(tx, TaskProgressed(added.key))
            return added

        return Task(await self._database.write(add), request, StatusCounts(0, 0, 0, 0, 0))

    async def find(self, task_id: str) -> TaskRecord:
        """Raises NotFound."""
        found = await self._database.read(lambda tx: tx.tasks.by_id(task_id))
        if found is None:
            raise NotFound
        return found

    async def shown(self, record: TaskRecord) -> Task:
        """A task as it is now."""
        return await self._database.read(lambda tx: _shown(tx, tx.tasks.task(record.key) or record))

    async def of_type(self, type_: DeviceTypeKey, page: TaskPage) -> tuple[list[Task], int, Mapping[str, int]]:
        """A page of the type's tasks, the number of all, and how many tasks of the type have each status."""

        def read(tx: Transaction) -> tuple[list[Task], int, Mapping[str, int]]:
            found, total = tx.tasks.page(
                type_, page.status, sort=page.sort, descending=page.descending, offset=page.offset, limit=page.count
            )
            counts = tx.tasks.counts_of_type(type_)
            return [_shown(tx, one) for one in found], total, {one: counts.get(one, 0) for one in TaskStatus}

        return await self._database.read(read)

    async def failing(self, organization: OrganizationKey, *, offset: int, limit: int) -> tuple[list[Task], int]:
        """A page of the tasks that failed on a device, of all types of the organization, and the number of all.

        Only tasks that have not ended or changed within `FAILED_KEPT_DAYS`; the latest first.
        """
        since_ms = self._clock.now_ms() - FAILED_KEPT_DAYS * _DAY_MS

        def read(tx: Transaction) -> tuple[list[Task], int]:
            found, total = tx.tasks.failing(organization, TASK_UNFINISHED, since_ms, offset=offset, limit=limit)
            return [_shown(tx, one) for one in found], total

        return await self._database.read(read)

    async def of_device(self, device: DeviceKey, page: TaskPage) -> tuple[list[tuple[Task, DeviceTaskRecord]], int]:
        """A page of the device's tasks, each with its entry for the device; and the number of all."""

        def read(tx: Transaction) -> tuple[list[tuple[Task, DeviceTaskRecord]], int]:
            found, total = tx.tasks.page_of_device(
                device, page.status, sort=page.sort, descending=page.descending, offset=page.offset, limit=page.count
            )
            return [(_shown(tx, task), entry) for task, entry in found], total

        return await self._database.read(read)

    async def entries(
        self, task: TaskRecord, *, status: str | None, dids: Collection[str] | None, offset: int, count: int
    ) -> tuple[Task, list[tuple[str, DeviceTaskRecord]], int]:
        """The task, a page of its entries, each with the id of its device, and the number of all; all of one moment."""

        def read(tx: Transaction) -> tuple[Task, list[tuple[str, DeviceTaskRecord]], int]:
            found, total = tx.tasks.page_of_entries(task.key, status=status, devices=dids, offset=offset, limit=count)
            return _shown(tx, tx.tasks.task(task.key) or task), found, total

        return await self._database.read(read)

    async def history(self, task: TaskRecord, device: DeviceKey | None) -> list[tuple[str, TaskHistoryRecord]]:
        """The history of the task's entries, oldest first, each with the id of its device."""
        return await self._database.read(lambda tx: tx.tasks.history(task.key, device, limit=_HISTORY_ROWS))

    async def entry_of(self, task: TaskRecord, device: Device) -> DeviceTaskRecord:
        """Raises NotFound when the task has no entry for the device."""
        found = await self._database.read(lambda tx: tx.tasks.entry_of(task.key, device.key))
        if found is None:
            raise NotFound
        return found

    async def waiting_for_acceptance(self, device: DeviceKey) -> list[str]:
        """The ids of update tasks that wait for the device's owner."""
        return await self._database.read(lambda tx: tx.tasks.waiting_for_acceptance(device, OPEN))

    async def cancel(self, task: TaskRecord) -> Task:
        """Cancel a task and its open entries. Raises Conflict when the task has ended."""
        now_ms = self._clock.now_ms()

        def work(tx: Transaction) -> TaskRecord:
            if (moved := move_task(tx, task.key, TaskStatus.CANCELLED, now_ms)) is None:
                raise Conflict(TASK_ENDED)
            note(tx, AuditEvent.TASK_CANCELLED, f"task {task.id}", now_ms=now_ms)
            tx.tell(TASK_ADDED, task.key)
            publish(tx, TaskProgressed(task.key))
            return moved

        moved = await self._database.write(work)
        await self._engine.cancel_device_tasks(task.key)
        return await self.shown(moved)

    async def continue_rollout(self, task: TaskRecord) -> Task:
        """Let a paused roll-out go on though too few canary devices succeeded. Raises Conflict."""
        rollout = await self._engine.work.rollouts.of(task)
        if rollout is None or rollout.phase is not RolloutPhase.PAUSED or task.status != TaskStatus.PROCESSING:
            raise Conflict(NOT_PAUSED)

        now_ms = self._clock.now_ms()

        def work(tx: Transaction) -> None:
            if (now := tx.tasks.task(task.key)) is not None:
                tx.tasks.put(replace(now, phase=RolloutPhase.OPEN, modified_on=now_ms))
                note(tx, AuditEvent.ROLLOUT_CONTINUED, f"task {task.id}", now_ms=now_ms)
            tx.tell(ROLLOUT_CHANGED, task.key)
            publish(tx, TaskProgressed(task.key))

        await self._database.write(work)
        return await self.shown(task)

    async def cancel_on(self, entry: DeviceTaskRecord) -> DeviceTaskRecord:
        """Cancel a task on one device. Raises Conflict when it has ended there."""
        now_ms = self._clock.now_ms()

        def work(tx: Transaction) -> DeviceTaskRecord:
            if (moved := cancel(tx, entry.key, now_ms)) is None:
                raise Conflict(TASK_ENDED)
            _note(tx, AuditEvent.TASK_CANCELLED, entry, now_ms)
            tell_move(tx, entry, moved)
            return moved

        return await self._database.write(work)

    async def answer(self, entry: DeviceTaskRecord, *, is_accepted: bool) -> Acceptance:
        """The owner's answer to an update. Raises Conflict when none is waited for."""
        now_ms = self._clock.now_ms()

        def work(tx: Transaction) -> DeviceTaskRecord:
            now = tx.tasks.entry(entry.key)
            if now is None or now.acceptance != Acceptance.WAITING or now.status in ENDED:
                raise Conflict(NOT_WAITING)
            answered = replace(now, acceptance=Acceptance.ACCEPTED if is_accepted else Acceptance.REJECTED)
            tx.tasks.put_entry(answered)
            event = AuditEvent.UPDATE_ACCEPTED if is_accepted else AuditEvent.UPDATE_REJECTED
            _note(tx, event, entry, now_ms)
            publish(tx, TaskProgressed(entry.task))
            tx.tell(DEVICES_HAVE_TASKS, (entry.device,))
            if not is_accepted and (failed := fail(tx, entry.key, _REJECTED, now_ms)) is not None:
                tell_move(tx, entry, failed)
                return failed
            return answered

        answered: DeviceTaskRecord = await self._database.write(work)
        return Acceptance(answered.acceptance)


def _note(tx: Transaction, event: AuditEvent, entry: DeviceTaskRecord, now_ms: Milliseconds) -> None:
    """Audit what was done to a task on one device."""
    task, device = tx.tasks.task(entry.task), tx.devices.device(entry.device)
    device_id = None if device is None else device.id
    note(tx, event, "" if task is None else f"task {task.id}", now_ms=now_ms, device=device_id)


def _check_references(tx: Transaction, request: TaskRequest, device_type: DeviceTypeKey) -> None:
    """Raises DeviceNotFound, NotFound, and ValidationFailed for a device or image of another type."""
    devices = tx.devices.by_ids(request.dids or ())
    for index, did in enumerate(request.dids or ()):
        device = devices.get(did)
        if device is None:
            raise DeviceNotFound(did)
        if device.device_type != device_type:
            raise ValidationFailed((Finding(f"dids.{index}", (invalid("is a device of another type"),)),))
    if request.update_id is not None:
        image = tx.firmware.image(request.update_id)
        if image is None:
            raise NotFound
        if image.device_type != device_type:
            raise ValidationFailed.of("taskParameters.update.updateId", invalid("is an image for another device type"))


def _shown(tx: Transaction, record: TaskRecord) -> Task:
    counts = tx.tasks.counts(record.key)
    succeeded, failed, cancelled = (counts.get(status, 0) for status in ENDED)
    completed = succeeded + failed + cancelled
    return Task(
        record,
        decode_task_request(record.request),
        StatusCounts(sum(counts.values()), completed, succeeded, failed, cancelled),
    )
