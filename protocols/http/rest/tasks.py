"""/devicemgmt/tasks: one operation on many devices (reference 2.10 and 15.2)."""

from typing import Annotated, Final

from msgspec import UNSET

from broker.accounts.permissions import ADMINISTRATORS, Permission
from broker.accounts.tokens import Caller
from broker.device_management.states import Acceptance
from broker.device_management.tasks import NOT_PAUSED, NOT_WAITING, TASK_ENDED, TOO_MANY_TASKS, Task
from broker.device_types.catalog import DeviceType
from broker.devices.registry import Device
from protocols.http.calls import ANY_TOKEN, NOTHING, USER, USER_OR_APPLICATION, InQuery, RestCall
from protocols.http.openapi import samples
from protocols.http.rest.managed import MANAGED_DEVICE, ManagementCalls
from protocols.http.rest.task_requests import (
    AcceptanceAnswer,
    Cancel,
    EntriesQuery,
    HistoryQuery,
    NewTask,
    TaskChange,
    TasksOfDeviceQuery,
    TasksQuery,
    page_of,
    requested,
)
from protocols.http.rest.task_shapes import (
    CancelledEntry,
    CountsByStatus,
    DeviceTaskObject,
    History,
    HistoryEntry,
    PendingTask,
    TaskList,
    TaskObject,
    TaskOfDevice,
    TasksOfDevice,
    TasksPage,
    TaskWithEntries,
    entry_members,
    task_members,
)
from protocols.http.schema import (
    Data,
    DataAndFlat,
    Id,
    NumberedPage,
    about,
    absent_if_none,
)
from storage.tasks import DeviceTaskRecord, TaskRecord

_TASK: Final = "/devicemgmt/tasks/{tid}"
_ENTRY: Final = "/devicemgmt/tasks/{tid}/devices/{did}"


class TaskCalls(ManagementCalls):
    path_names = {"tid": (Annotated[Id, about("A task")], samples.TASK)}

    async def _task(self, caller: Caller, tid: str) -> TaskRecord:
        """A task, for administrators of the organization that owns its type."""
        task = await self._management.tasks.find(tid)
        type_ = await self._types.get(task.device_type)
        await self._permissions.require_role(caller, type_.record, ADMINISTRATORS)
        return task

    async def _entry(self, caller: Caller, tid: str, did: str) -> DeviceTaskRecord:
        task, device = await self._management.tasks.find(tid), await self._devices.find(did)
        await self._task(caller, tid)
        return await self._management.tasks.entry_of(task, device)

    async def _owned_entry(self, caller: Caller, tid: str, did: str) -> DeviceTaskRecord:
        task, device = await self._management.tasks.find(tid), await self._devices.find(did)
        await self._permissions.require(caller, device, Permission.MANAGE)
        return await self._management.tasks.entry_of(task, device)

    @RestCall(
        "POST",
        "/devicemgmt/tasks",
        tokens=USER_OR_APPLICATION,
        on=NOTHING,
        summary="Create a task",
        about="For administrators of the organization that owns the type, and its applications. One property on the "
        "devices `dids`, on devices that fit `filter`, or on all of the type. `akc.update` installs a firmware image, "
        "with a `rollout` in steps.",
        refusals={404: "The device type, a device or the image does not exist.", 409: f"{TOO_MANY_TASKS}."},
    )
    async def create(self, caller: Caller, body: NewTask) -> Data[TaskObject]:
        type_ = await self._types.find(body.dtid)
        await self._permissions.require_role(caller, type_.record, ADMINISTRATORS)
        request, scheduled_on = requested(body)
        created = await self._management.tasks.create(type_, request, scheduled_on=scheduled_on)
        return Data(TaskObject(**task_members(created, type_), status=created.record.status))

    @RestCall(
        "GET",
        "/devicemgmt/tasks",
        tokens=USER_OR_APPLICATION,
        on=InQuery(ManagementCalls.chosen_type),
        summary="Tasks of a device type",
    )
    async def of_type(self, type_: DeviceType, query: TasksQuery) -> TasksPage:
        page = page_of(query.offset, query.count, query.status, query.sort, query.order)
        found, total, counts = await self._management.tasks.of_type(type_.record.key, page)
        shown = [TaskObject(**task_members(one, type_), status=one.record.status) for one in found]
        by_status = CountsByStatus(**{str(status): count for status, count in counts.items()})
        tasks = TaskList(shown, by_status)
        return TasksPage(tasks, total, query.offset, len(shown), status_counts=by_status)

    @RestCall("GET", _TASK, tokens=USER_OR_APPLICATION, on=_task, summary="One task")
    async def show(self, task: TaskRecord) -> Data[TaskObject]:
        return Data(await self._object(await self._management.tasks.shown(task)))

    @RestCall(
        "PUT",
        _TASK,
        tokens=USER_OR_APPLICATION,
        on=_task,
        summary="Cancel a task",
        about="Operations that are under way are not interrupted. With PROCESSING a paused roll-out goes on.",
        refusals={409: f"{TASK_ENDED}. {NOT_PAUSED}."},
    )
    async def change(self, task: TaskRecord, body: TaskChange) -> Data[TaskObject]:
        if body.status == "PROCESSING":
            return Data(await self._object(await self._management.tasks.continue_rollout(task)))
        return Data(await self._object(await self._management.tasks.cancel(task)))

    @RestCall(
        "GET",
        f"{_TASK}/statuses",
        tokens=USER_OR_APPLICATION,
        on=_task,
        summary="A task on each of its devices",
        about="`waitsFor` says in a sentence why a device is not done yet.",
    )
    async def statuses(self, task: TaskRecord, query: EntriesQuery) -> NumberedPage[TaskWithEntries]:
        dids = query.dids or None
        shown, found, total = await self._management.tasks.entries(
            task, status=query.status, dids=dids, offset=query.offset, count=query.count
        )
        explained = await self._management.waiting.explain(shown.record, [entry for _, entry in found])
        entries = [
            DeviceTaskObject(did=did, **entry_members(entry, why))
            for (did, entry), why in zip(found, explained, strict=True)
        ]
        members = task_members(shown, await self._types.get(task.device_type))
        whole = TaskWithEntries(**members, status=shown.record.status, statuses=entries)
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
    async def history(self, task: TaskRecord, query: HistoryQuery) -> Data[History]:
        device = None if query.did is None else (await self._devices.find(query.did)).key
        rows = await self._management.tasks.history(task, device)
        return Data(
            History(
                task.id,
                [
                    HistoryEntry(
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
    async def cancel_on(self, did: str, entry: DeviceTaskRecord, body: Cancel) -> DataAndFlat[CancelledEntry]:  # noqa: ARG002
        moved = await self._management.tasks.cancel_on(entry)
        return DataAndFlat(CancelledEntry(did, moved.status, moved.ts, moved.attempts))

    @RestCall(
        "POST",
        f"{_ENTRY}/acceptance",
        tokens=USER,
        on=_owned_entry,
        summary="Accept or reject an update",
        about="For the owner of the device.",
        refusals={409: NOT_WAITING},
    )
    async def accept(self, entry: DeviceTaskRecord, body: AcceptanceAnswer) -> AcceptanceAnswer:
        answered = await self._management.tasks.answer(entry, is_accepted=body.acceptance_status == "ACCEPTED")
        return AcceptanceAnswer("ACCEPTED" if answered is Acceptance.ACCEPTED else "REJECTED")

    @RestCall(
        "GET",
        "/devicemgmt/devices/{did}/tasks",
        tokens=ANY_TOKEN,
        on=MANAGED_DEVICE,
        summary="Tasks of a device",
        about="`status` is that of the task on this device, which is the only one in `dids`.",
    )
    async def of_device(self, device: Device, query: TasksOfDeviceQuery) -> NumberedPage[TasksOfDevice]:
        page = page_of(query.offset, query.count, query.status, query.sort, query.order)
        found, total = await self._management.tasks.of_device(device.key, page)
        shown = []
        for task, entry in found:
            (why,) = await self._management.waiting.explain(task.record, [entry])
            members = task_members(task, device.type)
            if members["dids"] is not UNSET:
                members["dids"] = [device.id]  # an owner need not know the other devices
            shown.append(TaskOfDevice(**members, **entry_members(entry, why)))
        return NumberedPage(TasksOfDevice(shown), total, query.offset, len(shown))

    @RestCall(
        "GET",
        "/devicemgmt/devices/{did}/pendingtasks",
        tokens=ANY_TOKEN,
        on=MANAGED_DEVICE,
        summary="Updates that wait for the owner",
        about="Ids of tasks.",
    )
    async def pending(self, device: Device) -> Data[list[PendingTask]]:
        return Data(await self._management.tasks.waiting_for_acceptance(device.key))

    async def _object(self, task: Task) -> TaskObject:
        return TaskObject(
            **task_members(task, await self._types.get(task.record.device_type)), status=task.record.status
        )
