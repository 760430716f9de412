"""Tasks and device tasks as they are shown (reference 15.2)."""

from typing import Annotated, Any, Final

from msgspec import UNSET, UnsetType

from broker.device_management.requests import RolloutPlan
from broker.device_management.rollouts import RolloutPhase
from broker.device_management.states import Acceptance, DeviceTaskStatus, TaskStatus
from broker.device_management.tasks import Task
from broker.device_management.waiting import TaskWait
from broker.device_types.catalog import DeviceType
from config.limits import TASK_EXPIRES_SECONDS
from protocols.http.openapi import samples
from protocols.http.rest.task_requests import TaskProperty, TaskType
from protocols.http.schema import (
    Amount,
    Id,
    NumberedPage,
    Shape,
    Timestamp,
    TypeId,
    about,
    absent_if_none,
    integer,
    one_of,
    time_ms,
)
from storage.tasks import DeviceTaskRecord

_COUNTS: Final = {"totalDevices": 0, "numCompleted": 0, "numSucceeded": 0, "numFailed": 0, "numCancelled": 0}
_EXAMPLE: Final[dict[str, Any]] = {
    "id": samples.TASK,
    "dtid": samples.DTID,
    "dids": [samples.DID],
    "filter": None,
    "taskType": "W",
    "property": "deviceProperties.device.utcOffset",
    "taskParameters": {"value": "+01:00", "expiresAfter": TASK_EXPIRES_SECONDS[1]},
    "status": "REQUESTED",
    "createdOn": samples.TS,
    "modifiedOn": samples.TS,
    "needsAcceptance": False,
    "statusCounts": _COUNTS,
}
_WAITING: Final[dict[str, Any]] = {
    "did": samples.DID,
    "status": "QUEUED",
    "ts": samples.TS,
    "numAttempts": 0,
    "acceptanceStatus": "NOT_REQUIRED",
    "waitsFor": "The device is not connected; it was last seen 2017-07-14 02:40:00 UTC.",
}
_TASK_STATUSES: Final = tuple(status.value for status in TaskStatus)
_STATUSES: Final = tuple(status.value for status in DeviceTaskStatus)
_ACCEPTANCES: Final = tuple(status.value for status in Acceptance)

PendingTask = Annotated[Id, about("A task", example=samples.TASK)]
_Progress = Annotated[int, integer("How much of the image was sent, in per cent", lowest=0, highest=100)]
_WaitsFor = Annotated[str, about("One sentence: what the device task waits for. Absent when it has ended")]


class _Update(Shape):
    update_id: Annotated[Id, about("The firmware image", example=samples.IMAGE)]
    rollout: RolloutPlan | UnsetType = UNSET
    protocol: str | UnsetType = UNSET


class _Parameters(Shape, kw_only=True):
    value: str | UnsetType = UNSET
    expires_after: Annotated[int, about("Seconds", example=TASK_EXPIRES_SECONDS[1])]
    update: _Update | UnsetType = UNSET


class _StatusCounts(Shape):
    total_devices: Amount
    num_completed: Amount
    num_succeeded: Amount
    num_failed: Amount
    num_cancelled: Amount


class _TaskMembers(Shape, kw_only=True):
    id: Id
    dtid: TypeId
    dids: list[Id] | UnsetType = UNSET
    filter: str | None
    task_type: TaskType
    property: TaskProperty
    task_parameters: _Parameters
    created_on: Timestamp
    modified_on: Timestamp
    scheduled_on: Annotated[int, time_ms("When it begins or began")] | UnsetType = UNSET
    needs_acceptance: bool
    status_counts: _StatusCounts
    is_paused: (
        Annotated[bool, about("true: a roll-out of which too few canary devices succeeded; else absent")] | UnsetType
    ) = UNSET


class TaskObject(_TaskMembers, kw_only=True):
    shape = "Task"
    example = _EXAMPLE

    status: Annotated[str, one_of(_TASK_STATUSES)]


_Attempts = Annotated[int, integer("Communication failures so far", lowest=0)]
_ErrorCode = Annotated[str, about("Why it failed or is tried again")]
_ErrorMessage = Annotated[str, about("The same in a sentence")]


class DeviceTaskObject(Shape, kw_only=True):
    shape = "DeviceTask"
    example = _WAITING

    did: Id
    status: Annotated[str, one_of(_STATUSES)]
    ts: Timestamp
    num_attempts: _Attempts
    acceptance_status: Annotated[str, one_of(_ACCEPTANCES)]
    error_code: _ErrorCode | UnsetType = UNSET
    error_message: _ErrorMessage | UnsetType = UNSET
    progress: _Progress | UnsetType = UNSET
    waits_for: _WaitsFor | UnsetType = UNSET


class TaskOfDevice(_TaskMembers, kw_only=True):
    example = {**_EXAMPLE, **{name: value for name, value in _WAITING.items() if name != "did"}}

    status: Annotated[str, one_of(_STATUSES)]
    ts: Timestamp
    num_attempts: _Attempts
    acceptance_status: Annotated[str, one_of(_ACCEPTANCES)]
    error_code: _ErrorCode | UnsetType = UNSET
    error_message: _ErrorMessage | UnsetType = UNSET
    progress: _Progress | UnsetType = UNSET
    waits_for: _WaitsFor | UnsetType = UNSET


class TaskWithEntries(TaskObject, kw_only=True):
    example = {**_EXAMPLE, "statuses": [_WAITING]}

    statuses: list[DeviceTaskObject]


class CountsByStatus(Shape):
    # Tasks of a type. The members are the statuses.
    example = dict.fromkeys(_TASK_STATUSES, 0) | {"COMPLETE": 1}

    SCHEDULED: Amount
    REQUESTED: Amount
    QUEUING: Amount
    PROCESSING: Amount
    COMPLETE: Amount
    CANCELLED: Amount


class TaskList(Shape):
    tasks: list[TaskObject]
    status_counts: CountsByStatus


class TasksPage(NumberedPage[TaskList], kw_only=True):
    # The counts stand at the top, as the specification has them, and inside `data`.
    status_counts: CountsByStatus


class TasksOfDevice(Shape):
    tasks: list[TaskOfDevice]


class HistoryEntry(Shape, kw_only=True):
    did: Id
    ts: Timestamp
    status: Annotated[str, one_of(_STATUSES)]
    error_code: str | UnsetType = UNSET
    error_message: str | UnsetType = UNSET
    num_attempts: Amount


class History(Shape):
    example = {
        "id": samples.TASK,
        "history": [
            {
                "did": samples.DID,
                "ts": samples.TS,
                "status": "FAILED",
                "errorCode": "TASK_EXPIRED",
                "errorMessage": "The task expired before the device had done it.",
                "numAttempts": 2,
            }
        ],
    }

    id: Id
    history: list[HistoryEntry]


class CancelledEntry(Shape):
    example = {"did": samples.DID, "status": "CANCELLED", "ts": samples.TS, "numAttempts": 0}

    did: Id
    status: Annotated[str, one_of(_STATUSES)]
    ts: Timestamp
    num_attempts: Amount


def task_members(task: Task, type_: DeviceType) -> dict[str, Any]:
    """The members of a task but for its status."""
    record, request, counts = task.record, task.request, task.counts
    update: _Update | UnsetType = UNSET
    if request.update_id is not None:
        update = _Update(request.update_id, absent_if_none(request.rollout), absent_if_none(request.protocol))
    return {
        "id": record.id,
        "dtid": type_.record.id,
        "dids": UNSET if request.dids is None else list(request.dids),
        "filter": request.filter,
        "task_type": request.task_type,
        "property": request.target,
        "task_parameters": _Parameters(
            value=absent_if_none(request.value), expires_after=request.expires_after, update=update
        ),
        "created_on": record.created_on,
        "modified_on": record.modified_on,
        "scheduled_on": absent_if_none(record.scheduled_on),
        "needs_acceptance": request.needs_acceptance,
        "status_counts": _StatusCounts(
            counts.total, counts.completed, counts.succeeded, counts.failed, counts.cancelled
        ),
        "is_paused": (record.phase == RolloutPhase.PAUSED and record.status == TaskStatus.PROCESSING) or UNSET,
    }


def entry_members(entry: DeviceTaskRecord, why: TaskWait) -> dict[str, Any]:
    return {
        "status": entry.status,
        "ts": entry.ts,
        "num_attempts": entry.attempts,
        "acceptance_status": entry.acceptance,
        "error_code": absent_if_none(entry.error_code),
        "error_message": absent_if_none(entry.error_message),
        "progress": absent_if_none(why.progress),
        "waits_for": absent_if_none(why.waits_for),
    }
