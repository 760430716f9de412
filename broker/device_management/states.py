"""The states of tasks and device tasks, and the one way from one to the next (reference 15.2).

Every change of a device task goes through `move`, inside the transaction that makes it: it refuses what the table does
not allow, writes the history, and completes the task when its last device task has ended.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from storage.keys import Milliseconds
from storage.tasks import DeviceTaskRecord, TaskHistoryRecord, TaskRecord
from storage.transaction import Transaction

_REPEATED: Final = 20  # communication failures of one device task that have a row each in the history


class TaskStatus(StrEnum):
    SCHEDULED = "SCHEDULED"
    REQUESTED = "REQUESTED"
    QUEUING = "QUEUING"
    PROCESSING = "PROCESSING"
    COMPLETE = "COMPLETE"
    CANCELLED = "CANCELLED"


class DeviceTaskStatus(StrEnum):
    REQUESTED = "REQUESTED"
    QUEUED = "QUEUED"
    PROCESSING = "PROCESSING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCEL_REQUESTED = "CANCEL_REQUESTED"
    CANCELLED = "CANCELLED"


class Acceptance(StrEnum):
    NOT_REQUIRED = "NOT_REQUIRED"
    WAITING = "WAITING"
    ACCEPTED = "ACCEPTED"
    REJECTED = "REJECTED"


class ErrorCode(StrEnum):
    TASK_EXPIRED = "TASK_EXPIRED"
    DEVICE_NOT_REGISTERED = "DEVICE_NOT_REGISTERED"
    DEVICE_TIMEOUT = "DEVICE_TIMEOUT"
    DEVICE_ERROR = "DEVICE_ERROR"
    PROPERTY_NOT_FOUND = "PROPERTY_NOT_FOUND"
    UPDATE_REJECTED = "UPDATE_REJECTED"
    UPDATE_RESULT = "UPDATE_RESULT"  # followed by `_` and the number
    VERSION_MISMATCH = "VERSION_MISMATCH"
    IMAGE_NOT_FOUND = "IMAGE_NOT_FOUND"
    DEVICE_DELETED = "DEVICE_DELETED"
    ROLLOUT_ABORTED = "ROLLOUT_ABORTED"


_T, _D = TaskStatus, DeviceTaskStatus
TASK_UNFINISHED: Final = (_T.SCHEDULED, _T.REQUESTED, _T.QUEUING, _T.PROCESSING)
TASK_ENDED: Final = (_T.COMPLETE, _T.CANCELLED)
ENDED: Final = (_D.SUCCEEDED, _D.FAILED, _D.CANCELLED)
OPEN: Final = (_D.REQUESTED, _D.QUEUED, _D.PROCESSING, _D.CANCEL_REQUESTED)
#: Of these a device has at most one that is neither of a server property nor just being cancelled.
BEGUN: Final = (_D.PROCESSING, _D.CANCEL_REQUESTED)

TASK_MAY_FOLLOW: Final[Mapping[TaskStatus, frozenset[TaskStatus]]] = {
    _T.SCHEDULED: frozenset({_T.REQUESTED, _T.CANCELLED}),
    _T.REQUESTED: frozenset({_T.QUEUING, _T.CANCELLED}),
    _T.QUEUING: frozenset({_T.PROCESSING, _T.CANCELLED}),
    _T.PROCESSING: frozenset({_T.COMPLETE, _T.CANCELLED}),
    _T.COMPLETE: frozenset(),
    _T.CANCELLED: frozenset(),
}
MAY_FOLLOW: Final[Mapping[DeviceTaskStatus, frozenset[DeviceTaskStatus]]] = {
    _D.REQUESTED: frozenset({_D.QUEUED, _D.FAILED, _D.CANCELLED}),
    _D.QUEUED: frozenset({_D.PROCESSING, _D.FAILED, _D.CANCEL_REQUESTED}),
    _D.PROCESSING: frozenset({_D.SUCCEEDED, _D.FAILED, _D.QUEUED, _D.CANCEL_REQUESTED}),
    _D.CANCEL_REQUESTED: frozenset({_D.CANCELLED, _D.SUCCEEDED, _D.FAILED}),
    _D.SUCCEEDED: frozenset(),
    _D.FAILED: frozenset(),
    _D.CANCELLED: frozenset(),
}


class TaskFailure(msgspec.Struct, frozen=True):
    """Why a device task failed or is tried again: a code for programs and a sentence for people."""

    code: str
    message: str


def move_task(tx: Transaction, key: int, status: TaskStatus, now_ms: Milliseconds, **changes: Any) -> TaskRecord | None:
    """Change the status of a task; None when the new status may not follow the present one."""
    task = tx.tasks.task(key)
    if task is None or status not in TASK_MAY_FOLLOW[TaskStatus(task.status)]:
        return None
    moved = replace(task, status=status, modified_on=now_ms, **changes)
    tx.tasks.put(moved)
    return moved


def move(
    tx: Transaction,
    key: int,
    status: DeviceTaskStatus,
    now_ms: Milliseconds,
    *,
    failure: TaskFailure | None = None,
    **changes: Any,
) -> DeviceTaskRecord | None:
    """Change the status of a device task; None when the new status may not follow the present one."""
    entry = tx.tasks.entry(key)
    if entry is None or status not in MAY_FOLLOW[DeviceTaskStatus(entry.status)]:
        return None
    if status is _D.PROCESSING:
        changes.setdefault("started_on", entry.started_on or now_ms)
    if status in ENDED:
        changes["ended_on"] = now_ms
    moved = replace(
        entry,
        status=status,
        ts=now_ms,
        error_code=None if failure is None else failure.code,
        error_message=None if failure is None else failure.message,
        **changes,
    )
    tx.tasks.put_entry(moved)
    _remember(tx, moved)
    if status in ENDED:
        complete_if_done(tx, moved.task, now_ms)
    return moved


def fail(tx: Transaction, key: int, failure: TaskFailure, now_ms: Milliseconds) -> DeviceTaskRecord | None:
    """End a device task that will not succeed: FAILED, or CANCELLED when a cancel had been asked for."""
    entry = tx.tasks.entry(key)
    if entry is not None and entry.status == _D.CANCEL_REQUESTED:
        return move(tx, key, _D.CANCELLED, now_ms, failure=failure)
    return move(tx, key, _D.FAILED, now_ms, failure=failure)


def cancel(
    tx: Transaction, key: int, now_ms: Milliseconds, failure: TaskFailure | None = None
) -> DeviceTaskRecord | None:
    """Cancel a device task. One whose operation runs keeps CANCEL_REQUESTED until the operation has ended."""
    entry = tx.tasks.entry(key)
    if entry is None or entry.status in {*ENDED, _D.CANCEL_REQUESTED}:
        return entry if entry is not None and entry.status == _D.CANCEL_REQUESTED else None
    if entry.status == _D.REQUESTED:
        return move(tx, key, _D.CANCELLED, now_ms, failure=failure)
    requested = move(tx, key, _D.CANCEL_REQUESTED, now_ms, failure=failure)
    if entry.status == _D.QUEUED:
        return move(tx, key, _D.CANCELLED, now_ms, failure=failure)
    return requested


def put_back(tx: Transaction, key: int, failure: TaskFailure, now_ms: Milliseconds) -> DeviceTaskRecord | None:
    """A communication failure: the device task waits for the next registration, or is cancelled if that was asked."""
    entry = tx.tasks.entry(key)
    if entry is None:
        return None
    if entry.status == _D.CANCEL_REQUESTED:
        return move(tx, key, _D.CANCELLED, now_ms, failure=failure, attempts=entry.attempts + 1)
    return move(tx, key, _D.QUEUED, now_ms, failure=failure, attempts=entry.attempts + 1, step="")


def complete_if_done(tx: Transaction, task: int, now_ms: Milliseconds) -> None:
    """Complete a task whose entries have all ended. While entries are still being queued, it is not done."""
    if not tx.tasks.has_any(task, OPEN):
        move_task(tx, task, _T.COMPLETE, now_ms)


def _remember(tx: Transaction, entry: DeviceTaskRecord) -> None:
    row = TaskHistoryRecord(
        entry.task,
        entry.device,
        entry.ts,
        entry.status,
        entry.error_code,
        entry.error_message,
        entry.attempts,
    )
    # A device whose connection fails all the time would fill the history: later failures change the last row.
    if entry.attempts > _REPEATED and entry.status in {_D.QUEUED, _D.PROCESSING}:
        tx.tasks.renew_history(row)
    else:
        tx.tasks.add_history(row)
