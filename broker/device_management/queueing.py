"""From a task to its device tasks (reference 15.2). Functions of one transaction each, in batches of bounded size."""

from typing import Final

import msgspec

from broker.cluster.kinds import DEVICE_TASK_MOVED, DeviceTaskMove, publish
from broker.device_management.properties import has_server_property, merge_server_properties, parse_filter
from broker.device_management.requests import TaskRequest, decode_task_request, nested_value
from broker.device_management.states import (
    OPEN,
    Acceptance,
    DeviceTaskStatus,
    ErrorCode,
    TaskFailure,
    TaskStatus,
    cancel,
    complete_if_done,
    fail,
    move,
    move_task,
)
from broker.errors import ValidationFailed
from broker.facts import TaskProgressed
from storage.keys import DeviceKey, Milliseconds
from storage.tasks import DeviceTaskRecord
from storage.transaction import Transaction

BATCH: Final = 200  # device tasks in one transaction: other writes wait for it
NEVER_REGISTERED: Final = TaskFailure(
    ErrorCode.DEVICE_NOT_REGISTERED, "The device has never registered for device management."
)
EXPIRED: Final = TaskFailure(ErrorCode.TASK_EXPIRED, "The task expired before the device had done it.")


def fix_devices(tx: Transaction, key: int, now_ms: Milliseconds) -> None:
    """REQUESTED to QUEUING: the task has an entry for each of its devices from now on."""
    task = move_task(tx, key, TaskStatus.QUEUING, now_ms)
    if task is None:
        return
    request = decode_task_request(task.request)
    acceptance = Acceptance.WAITING if request.needs_acceptance else Acceptance.NOT_REQUIRED
    if request.dids is None:
        matches = parse_filter(request.filter or "")
        tx.device_management.add_device_tasks(key, task.device_type, matches, acceptance=acceptance, now_ms=now_ms)
    else:
        found = tx.devices.by_ids(request.dids)
        known = [found[did] for did in request.dids if did in found]
        devices = [one.key for one in known if one.device_type == task.device_type]
        tx.tasks.add_entries(key, devices, acceptance=acceptance, now_ms=now_ms)
    tx.tasks.begin_history(key)


class QueuedDevices(msgspec.Struct, frozen=True):
    """The devices that a batch has queued. `is_last`: every entry of the task is queued or has ended."""

    devices: tuple[DeviceKey, ...]
    is_last: bool


def queue_some(tx: Transaction, key: int, now_ms: Milliseconds) -> QueuedDevices:
    """Queue some entries of a task; after the last one, QUEUING becomes PROCESSING."""
    task = tx.tasks.task(key)
    if task is None or task.status != TaskStatus.QUEUING:
        return QueuedDevices((), True)
    request = decode_task_request(task.request)
    entries = tx.tasks.entries_with(key, (DeviceTaskStatus.REQUESTED,), limit=BATCH)
    registered = tx.device_management.registered_on([entry.device for entry in entries])
    waiting = []
    for entry in entries:
        move(tx, entry.key, DeviceTaskStatus.QUEUED, now_ms)
        if request.server_path is not None:
            _on_server_property(tx, entry, request, now_ms)
        elif entry.device not in registered:
            fail(tx, entry.key, NEVER_REGISTERED, now_ms)
        else:
            waiting.append(entry.device)
    if len(entries) == BATCH:
        return QueuedDevices(tuple(waiting), False)
    move_task(tx, key, TaskStatus.PROCESSING, now_ms)
    complete_if_done(tx, key, now_ms)
    return QueuedDevices(tuple(waiting), True)


def _on_server_property(tx: Transaction, entry: DeviceTaskRecord, request: TaskRequest, now_ms: Milliseconds) -> None:
    """Read or write a server property, which needs no connection."""
    move(tx, entry.key, DeviceTaskStatus.PROCESSING, now_ms)
    path = request.server_path or ""
    if request.operation == "W":
        try:
            merge_server_properties(tx, entry.device, nested_value(path, request.value or ""), now_ms)
        except ValidationFailed:
            too_many = TaskFailure(ErrorCode.DEVICE_ERROR, "The device would have too many server properties.")
            fail(tx, entry.key, too_many, now_ms)
            return
    elif not has_server_property(tx, entry.device, path):
        unknown = TaskFailure(ErrorCode.PROPERTY_NOT_FOUND, "The device does not have the server property.")
        fail(tx, entry.key, unknown, now_ms)
        return
    move(tx, entry.key, DeviceTaskStatus.SUCCEEDED, now_ms)


def expire_some(tx: Transaction, key: int, now_ms: Milliseconds) -> int:
    """End some entries of a task whose time is over; return how many."""
    entries = tx.tasks.entries_with(key, OPEN, limit=BATCH)
    return _told(tx, [(entry, fail(tx, entry.key, EXPIRED, now_ms)) for entry in entries])


def cancel_some(tx: Transaction, key: int, now_ms: Milliseconds, failure: TaskFailure | None) -> int:
    """Cancel some entries of a task; none is left when fewer than `BATCH` were."""
    statuses = [DeviceTaskStatus.REQUESTED, DeviceTaskStatus.QUEUED]
    if failure is None:  # the operator's wish; a roll-out that is stopped lets the begun ones go on
        statuses.append(DeviceTaskStatus.PROCESSING)
    entries = tx.tasks.entries_with(key, statuses, limit=BATCH)
    return _told(tx, [(entry, cancel(tx, entry.key, now_ms, failure)) for entry in entries])


def fail_all_of_device(tx: Transaction, device: DeviceKey, failure: TaskFailure, now_ms: Milliseconds) -> None:
    entries = tx.tasks.entries_of_device(device, OPEN)
    _told(tx, [(entry, fail(tx, entry.key, failure, now_ms)) for entry in entries])


def _told(tx: Transaction, pairs: list[tuple[DeviceTaskRecord, DeviceTaskRecord | None]]) -> int:
    return sum(tell_move(tx, before, after) for before, after in pairs)


def tell_move(tx: Transaction, before: DeviceTaskRecord, after: DeviceTaskRecord | None) -> bool:
    """Tell the end of a step of a device task; False: None was taken."""
    if after is None:
        return False
    tx.tell(DEVICE_TASK_MOVED, DeviceTaskMove(before, after))
    publish(tx, TaskProgressed(after.task))
    return True
