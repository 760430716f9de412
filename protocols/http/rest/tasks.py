"""/devicemgmt/tasks: one operation on many devices (reference 2.10 and 15.2)."""

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Raw, UnsetType

from broker.accounts.permissions import ADMINISTRATORS, Permission
from broker.accounts.room import AccountsRoom
from broker.accounts.tokens import Caller
from broker.device_management.requests import RolloutPlan, TaskRequest
from broker.device_management.room import DeviceManagementRoom
from broker.device_management.states import Acceptance, DeviceTaskStatus, TaskStatus
from broker.device_management.tasks import NOT_PAUSED, NOT_WAITING, TASK_ENDED, Task, TaskPage
from broker.device_management.waiting import Explained
from broker.device_types.catalog import DeviceType
from broker.device_types.room import DeviceTypesRoom
from broker.devices.registry import Device
from broker.devices.room import DevicesRoom
from broker.errors import INVALID, Finding, ValidationFailed
from config.limits import IDS_MAX, TASK_EXPIRES_SECONDS, TASK_SCHEDULE_DAYS
from protocols.http.calls import ANY_TOKEN, NOTHING, USER, USER_OR_APPLICATION, InQuery, RestCall, RestCalls
from protocols.http.openapi import samples
from protocols.http.reading import Query, has_value, members
from protocols.http.rest.device_properties import DEVICE_MANAGEMENT
from protocols.http.rest.managed import MANAGED_DEVICE, type_in_query
from protocols.http.rest.named import require_role
from protocols.http.schema import (
    Amount,
    Count,
    Data,
    DataAndFlat,
    Id,
    NumberedPage,
    Offset,
    Shape,
    Timestamp,
    TypeId,
    about,
    absent_if_none,
    ids,
    integer,
    one_of,
    time_ms,
)
from storage.keys import Milliseconds
from storage.tasks import DeviceTaskRecord, TaskRecord

_TASK: Final = "/devicemgmt/tasks/{tid}"
_ENTRY: Final = "/devicemgmt/tasks/{tid}/devices/{did}"
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

_TaskType = Annotated[str, one_of(("R", "W", "E", "READ", "WRITE", "EXECUTE"), "Any case")]
_Property = Annotated[
    str, about("`serverProperties.…`, `deviceProperties.…`, or `akc.update`", example="serverProperties.site.floor")
]
_Filter = Annotated[str, about("As for the properties of a type's devices; not together with `dids`")]
_Pending = Annotated[Id, about("A task", example=samples.TASK)]
_Progress = Annotated[int, integer("How much of the image was sent, in per cent", lowest=0, highest=100)]
_WaitsFor = Annotated[str, about("One sentence: what the device task waits for. Absent when it has ended")]


class _Rollout(Shape):
    # Only described: its bounds are checked in the broker.
    devices_per_minute: Annotated[int, integer("How many devices begin in a minute", lowest=1)] | None = None
    canary_devices: (
        Annotated[int, integer("The first devices to begin; the others wait until these have ended", lowest=1)] | None
    ) = None
    canary_success_percent: Annotated[
        int, integer("Of the canary devices; with fewer the roll-out pauses", lowest=0, highest=100)
    ] = 100
    abort_percent: (
        Annotated[int, integer("Of all devices; when more have failed, no other device begins", lowest=0, highest=100)]
        | None
    ) = None


class _NewUpdate(Shape):
    update_id: Annotated[Id, about("The firmware image")] | None = None
    rollout: _Rollout | None = None


class _NewParameters(Shape):
    value: Annotated[Raw, about("What to write", type="string")] = msgspec.field(default_factory=Raw)
    expires_after: (
        Annotated[int, integer("Seconds", lowest=TASK_EXPIRES_SECONDS[0], highest=TASK_EXPIRES_SECONDS[2])] | None
    ) = None
    scheduled_on: Annotated[int, time_ms("The same as beside `taskParameters`")] | None = None
    update: _NewUpdate | None = None


class _NewTask(Shape, kw_only=True):
    example = {
        "dtid": samples.DTID,
        "dids": [samples.DID],
        "taskType": "W",
        "property": "serverProperties.site.floor",
        "taskParameters": {"value": "3"},
    }

    dtid: TypeId
    dids: Annotated[list[str], about("Device ids. Absent: all devices of the type")] | None = None
    filter: _Filter | None = None
    task_type: _TaskType
    property: _Property
    task_parameters: Annotated[
        Raw, about("`value`, `expiresAfter`, `update` with `updateId` and `rollout`", type="object")
    ] = msgspec.field(default_factory=Raw)
    scheduled_on: (
        Annotated[int, time_ms(f"When it begins, at most {TASK_SCHEDULE_DAYS} days ahead. Absent: now")] | None
    ) = None
    needs_acceptance: Annotated[bool, about("An update waits for the device's owner")] = False


class _Update(Shape):
    update_id: Annotated[Id, about("The firmware image", example=samples.IMAGE)]
    rollout: RolloutPlan | UnsetType = UNSET


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
    task_type: _TaskType
    property: _Property
    task_parameters: _Parameters
    created_on: Timestamp
    modified_on: Timestamp
    scheduled_on: Annotated[int, time_ms("When it begins or began")] | UnsetType = UNSET
    needs_acceptance: bool
    status_counts: _StatusCounts


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


class _TaskOfDevice(_TaskMembers, kw_only=True):
    example = {**_EXAMPLE, **{name: value for name, value in _WAITING.items() if name != "did"}}

    status: Annotated[str, one_of(_STATUSES)]
    ts: Timestamp
    num_attempts: _Attempts
    acceptance_status: Annotated[str, one_of(_ACCEPTANCES)]
    error_code: _ErrorCode | UnsetType = UNSET
    error_message: _ErrorMessage | UnsetType = UNSET
    progress: _Progress | UnsetType = UNSET
    waits_for: _WaitsFor | UnsetType = UNSET


class _TaskWithEntries(TaskObject, kw_only=True):
    example = {**_EXAMPLE, "statuses": [_WAITING]}

    statuses: list[DeviceTaskObject]


class _CountsByStatus(Shape):
    # Tasks of a type. The members are the statuses.
    example = dict.fromkeys(_TASK_STATUSES, 0) | {"COMPLETE": 1}

    SCHEDULED: Amount
    REQUESTED: Amount
    QUEUING: Amount
    PROCESSING: Amount
    COMPLETE: Amount
    CANCELLED: Amount


class _Tasks(Shape):
    tasks: list[TaskObject]
    status_counts: _CountsByStatus


class _TasksOfDevice(Shape):
    tasks: list[_TaskOfDevice]


class _HistoryEntry(Shape, kw_only=True):
    did: Id
    ts: Timestamp
    status: Annotated[str, one_of(_STATUSES)]
    error_code: str | UnsetType = UNSET
    error_message: str | UnsetType = UNSET
    num_attempts: Amount


class _History(Shape):
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
    history: list[_HistoryEntry]


class _CancelledEntry(Shape):
    example = {"did": samples.DID, "status": "CANCELLED", "ts": samples.TS, "numAttempts": 0}

    did: Id
    status: Annotated[str, one_of(_STATUSES)]
    ts: Timestamp
    num_attempts: Amount


class _Sorted(Shape):
    count: Count = 100
    offset: Offset = 0
    order: Annotated[Literal["asc", "desc"], about("")] = "desc"
    sort: Annotated[Literal["createdOn", "modifiedOn"], about("")] = "createdOn"


class _TasksQuery(Shape):
    dtid: Annotated[TypeId, about("The device type", example=samples.TYPE_NAME)]
    status: Annotated[TaskStatus, about("Only tasks in this status")] | None = None
    count: Count = 100
    offset: Offset = 0
    order: Annotated[Literal["asc", "desc"], about("")] = "desc"
    sort: Annotated[Literal["createdOn", "modifiedOn"], about("")] = "createdOn"


class _OfDeviceQuery(_Sorted):
    status: Annotated[DeviceTaskStatus, about("Only device tasks in this status")] | None = None


class _EntriesQuery(Shape):
    count: Count = 100
    offset: Offset = 0
    status: Annotated[DeviceTaskStatus, about("Only device tasks in this status")] | None = None
    dids: Annotated[tuple[str, ...], ids("Only these devices", longest=IDS_MAX)] = ()


class _HistoryQuery(Shape):
    did: Annotated[str, about("Only this device")] | None = None


class _TaskChange(Shape):
    example = {"status": "CANCELLED"}

    status: Annotated[Literal["CANCELLED", "PROCESSING"], about("PROCESSING lets a paused roll-out go on")]


class _Cancel(Shape):
    example = {"status": "CANCELLED"}

    status: Annotated[Literal["CANCELLED"], about("")]


class _Acceptance(Shape):
    example = {"acceptanceStatus": "ACCEPTED"}

    acceptance_status: Annotated[Literal["ACCEPTED", "REJECTED"], about("")]


class TaskCalls(RestCalls):
    chapter = DEVICE_MANAGEMENT
    path_names = {"tid": (Annotated[Id, about("A task")], samples.TASK)}

    def __init__(
        self,
        accounts: AccountsRoom,
        device_types: DeviceTypesRoom,
        devices: DevicesRoom,
        device_management: DeviceManagementRoom,
    ) -> None:
        self._permissions = accounts.permissions
        self._types = device_types.catalog
        self._devices = devices.registry
        self._tasks = device_management.tasks
        self._waiting = device_management.waiting

    async def _chosen_type(self, caller: Caller, query: Query) -> DeviceType:
        return await type_in_query(self._types, self._permissions, caller, query)

    async def _task(self, caller: Caller, tid: str) -> TaskRecord:
        """A task, for administrators of the organization that owns its type."""
        task = await self._tasks.find(tid)
        type_ = await self._types.get(task.device_type)
        await require_role(self._permissions, caller, type_.record, ADMINISTRATORS)
        return task

    async def _entry(self, caller: Caller, tid: str, did: str) -> DeviceTaskRecord:
        task, device = await self._tasks.find(tid), await self._devices.find(did)
        await self._task(caller, tid)
        return await self._tasks.entry_of(task, device)

    async def _owned_entry(self, caller: Caller, tid: str, did: str) -> DeviceTaskRecord:
        task, device = await self._tasks.find(tid), await self._devices.find(did)
        await self._permissions.require(caller, device, Permission.MANAGE)
        return await self._tasks.entry_of(task, device)

    @RestCall(
        "POST",
        "/devicemgmt/tasks",
        tokens=USER_OR_APPLICATION,
        on=NOTHING,
        summary="Create a task",
        about="For administrators of the organization that owns the type, and its applications. One property on the "
        "devices `dids`, on those that fit `filter`, or on all of the type. `akc.update` installs a firmware image, "
        "with a `rollout` in steps.",
        refusals={404: "The device type, a device or the image does not exist."},
    )
    async def create(self, caller: Caller, body: _NewTask) -> Data[TaskObject]:
        type_ = await self._types.find(body.dtid)
        await require_role(self._permissions, caller, type_.record, ADMINISTRATORS)
        request, scheduled_on = _request(body)
        created = await self._tasks.create(type_, request, scheduled_on=scheduled_on)
        return Data(TaskObject(**_members(created, type_), status=created.record.status))

    @RestCall(
        "GET",
        "/devicemgmt/tasks",
        tokens=USER_OR_APPLICATION,
        on=InQuery(_chosen_type),
        summary="Tasks of a device type",
    )
    async def of_type(self, type_: DeviceType, query: _TasksQuery) -> NumberedPage[_Tasks]:
        page = _page(query.offset, query.count, query.status, query.sort, query.order)
        found, total, counts = await self._tasks.of_type(type_.record.key, page)
        shown = [TaskObject(**_members(one, type_), status=one.record.status) for one in found]
        by_status = _CountsByStatus(**{str(status): count for status, count in counts.items()})
        return NumberedPage(_Tasks(shown, by_status), total, query.offset, len(shown))

    @RestCall("GET", _TASK, tokens=USER_OR_APPLICATION, on=_task, summary="One task")
    async def show(self, task: TaskRecord) -> Data[TaskObject]:
        return Data(await self._object(await self._tasks.shown(task)))

    @RestCall(
        "PUT",
        _TASK,
        tokens=USER_OR_APPLICATION,
        on=_task,
        summary="Cancel a task",
        about="Operations that are under way are not interrupted. With PROCESSING a paused roll-out goes on.",
        refusals={409: f"{TASK_ENDED}. {NOT_PAUSED}."},
    )
    async def change(self, task: TaskRecord, body: _TaskChange) -> Data[TaskObject]:
        if body.status == "PROCESSING":
            return Data(await self._object(await self._tasks.continue_rollout(task)))
        return Data(await self._object(await self._tasks.cancel(task)))

    @RestCall(
        "GET",
        f"{_TASK}/statuses",
        tokens=USER_OR_APPLICATION,
        on=_task,
        summary="A task on each of its devices",
        about="`waitsFor` says in a sentence why a device is not done yet.",
    )
    async def statuses(self, task: TaskRecord, query: _EntriesQuery) -> NumberedPage[_TaskWithEntries]:
        dids = query.dids or None
        found, total = await self._tasks.entries(
            task, status=query.status, dids=dids, offset=query.offset, count=query.count
        )
        explained = await self._waiting.explain(task, [entry for _, entry in found])
        entries = [
            DeviceTaskObject(did=did, **_entry_members(entry, why))
            for (did, entry), why in zip(found, explained, strict=True)
        ]
        shown = await self._tasks.shown(task)
        members = _members(shown, await self._types.get(task.device_type))
        whole = _TaskWithEntries(**members, status=shown.record.status, statuses=entries)
        return NumberedPage(whole, total, query.offset, len(entries))

    @RestCall(
        "GET",
        f"{_TASK}/statuses/history",
        tokens=USER_OR_APPLICATION,
        on=_task,
        summary="What happened to a task on its devices",
        about="Oldest first.",
        refusals={404: "The device does not exist."},
    )
    async def history(self, task: TaskRecord, query: _HistoryQuery) -> Data[_History]:
        device = None if query.did is None else (await self._devices.find(query.did)).key
        rows = await self._tasks.history(task, device)
        return Data(
            _History(
                task.id,
                [
                    _HistoryEntry(
                        did=did,
                        ts=row.ts,
                        status=row.status,
                        error_code=absent_if_none(row.error_code),
                        error_message=absent_if_none(row.error_message),
                        num_attempts=row.attempts,
                    )
                    for did, row in rows
                ],
            )
        )

    @RestCall(
        "PUT",
        _ENTRY,
        tokens=USER_OR_APPLICATION,
        on=_entry,
        summary="Cancel a task on one device",
        refusals={409: TASK_ENDED},
    )
    async def cancel_on(self, did: str, entry: DeviceTaskRecord, body: _Cancel) -> DataAndFlat[_CancelledEntry]:  # noqa: ARG002
        moved = await self._tasks.cancel_on(entry)
        return DataAndFlat(_CancelledEntry(did, moved.status, moved.ts, moved.attempts))

    @RestCall(
        "POST",
        f"{_ENTRY}/acceptance",
        tokens=USER,
        on=_owned_entry,
        summary="Accept or reject an update",
        about="For the owner of the device.",
        refusals={409: NOT_WAITING},
    )
    async def accept(self, entry: DeviceTaskRecord, body: _Acceptance) -> _Acceptance:
        answered = await self._tasks.answer(entry, is_accepted=body.acceptance_status == "ACCEPTED")
        return _Acceptance("ACCEPTED" if answered is Acceptance.ACCEPTED else "REJECTED")

    @RestCall(
        "GET",
        "/devicemgmt/devices/{did}/tasks",
        tokens=ANY_TOKEN,
        on=MANAGED_DEVICE,
        summary="Tasks of a device",
        about="`status` is that of the task on this device, which is the only one in `dids`.",
    )
    async def of_device(self, device: Device, query: _OfDeviceQuery) -> NumberedPage[_TasksOfDevice]:
        page = _page(query.offset, query.count, query.status, query.sort, query.order)
        found, total = await self._tasks.of_device(device.key, page)
        shown = []
        for task, entry in found:
            (why,) = await self._waiting.explain(task.record, [entry])
            members = _members(task, device.type)
            if members["dids"] is not UNSET:
                members["dids"] = [device.id]  # an owner need not know the other devices
            shown.append(_TaskOfDevice(**members, **_entry_members(entry, why)))
        return NumberedPage(_TasksOfDevice(shown), total, query.offset, len(shown))

    @RestCall(
        "GET",
        "/devicemgmt/devices/{did}/pendingtasks",
        tokens=ANY_TOKEN,
        on=MANAGED_DEVICE,
        summary="Updates that wait for the owner",
        about="Ids of tasks.",
    )
    async def pending(self, device: Device) -> Data[list[_Pending]]:
        return Data(await self._tasks.waiting_for_acceptance(device.key))

    async def _object(self, task: Task) -> TaskObject:
        return TaskObject(**_members(task, await self._types.get(task.record.device_type)), status=task.record.status)


def _page(offset: int, count: int, status: str | None, sort: str, order: str) -> TaskPage:
    column = "modified_on" if sort == "modifiedOn" else "created_on"
    return TaskPage(offset, count, status, column, order == "desc")


def _request(body: _NewTask) -> tuple[TaskRequest, Milliseconds | None]:
    """The task as it was asked for, and its time. Raises ValidationFailed."""
    given = _given_parameters(body.task_parameters)
    scheduled_on = given.scheduled_on if body.scheduled_on is None else body.scheduled_on
    update = given.update or _NewUpdate()
    request = TaskRequest(
        task_type=body.task_type,
        target=body.property,
        # 0 stands for the time of the type; a 0 that was sent is refused like any other short time.
        expires_after=0 if given.expires_after is None else given.expires_after or -1,
        dids=None if body.dids is None else tuple(dict.fromkeys(body.dids)),
        filter=body.filter or None,
        value=_value(given.value),
        update_id=update.update_id,
        rollout=None if update.rollout is None else RolloutPlan(**msgspec.structs.asdict(update.rollout)),
        needs_acceptance=body.needs_acceptance,
    )
    return request, None if scheduled_on is None else Milliseconds(scheduled_on)


def _given_parameters(given: Raw) -> _NewParameters:
    if not has_value(given):
        return _NewParameters()
    if not bytes(given).startswith(b"{"):
        raise ValidationFailed.of("taskParameters", INVALID)
    try:
        return members(bytes(given), _NewParameters)
    except ValidationFailed as error:
        inner = tuple(Finding(f"taskParameters.{one.field}", one.messages) for one in error.findings)
        raise ValidationFailed(inner) from None


def _value(given: Raw) -> str | None:
    """A text, or the text of a number or a Boolean. Raises ValidationFailed for anything else."""
    if not has_value(given):
        return None
    value: Any = msgspec.json.decode(given)
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float):
        return bytes(given).decode()
    raise ValidationFailed.of("taskParameters.value", INVALID)


def _members(task: Task, type_: DeviceType) -> dict[str, Any]:
    """The members of a task but for its status."""
    record, request, counts = task.record, task.request, task.counts
    update: _Update | UnsetType = UNSET
    if request.update_id is not None:
        update = _Update(request.update_id, absent_if_none(request.rollout))
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
    }


def _entry_members(entry: DeviceTaskRecord, why: Explained) -> dict[str, Any]:
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
