"""Bodies and queries of the calls of tasks (reference 15.2)."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Raw

from broker.device_management.requests import RolloutPlan, TaskRequest
from broker.device_management.states import DeviceTaskStatus, TaskStatus
from broker.device_management.tasks import TaskPage
from broker.errors import Finding, ValidationFailed, invalid
from broker.site import IMAGE_PROTOCOLS
from config.limits import IDS_MAX, TASK_EXPIRES_SECONDS, TASK_SCHEDULE_DAYS
from protocols.http.openapi import samples
from protocols.http.reading import has_value, members
from protocols.http.schema import (
    Count,
    Id,
    Offset,
    Shape,
    TypeId,
    about,
    ids,
    integer,
    one_of,
    time_ms,
)
from storage.keys import Milliseconds

TaskType = Annotated[str, one_of(("R", "W", "E", "READ", "WRITE", "EXECUTE"), "Any case")]
TaskProperty = Annotated[
    str, about("`serverProperties.…`, `deviceProperties.…`, or `akc.update`", example="serverProperties.site.floor")
]
_Filter = Annotated[str, about("As for the properties of a type's devices; not together with `dids`")]


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
    protocol: Annotated[str, one_of(IMAGE_PROTOCOLS, "By which devices fetch the image")] | None = None


class _NewParameters(Shape):
    value: Annotated[Raw, about("What to write", type="string")] = msgspec.field(default_factory=Raw)
    expires_after: (
        Annotated[int, integer("Seconds", lowest=TASK_EXPIRES_SECONDS[0], highest=TASK_EXPIRES_SECONDS[2])] | None
    ) = None
    scheduled_on: Annotated[int, time_ms("The same as beside `taskParameters`")] | None = None
    update: _NewUpdate | None = None


class NewTask(Shape, kw_only=True):
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
    task_type: TaskType
    property: TaskProperty
    task_parameters: Annotated[
        Raw, about("`value`, `expiresAfter`, `update` with `updateId`, `rollout` and `protocol`", type="object")
    ] = msgspec.field(default_factory=Raw)
    scheduled_on: (
        Annotated[int, time_ms(f"When it begins, at most {TASK_SCHEDULE_DAYS} days ahead. Absent: now")] | None
    ) = None
    needs_acceptance: Annotated[bool, about("An update waits for the device's owner")] = False


class _Sorted(Shape):
    count: Count = 100
    offset: Offset = 0
    order: Annotated[Literal["asc", "desc"], about("")] = "desc"
    sort: Annotated[Literal["createdOn", "modifiedOn"], about("")] = "createdOn"


class TasksQuery(Shape):
    dtid: Annotated[TypeId, about("The device type", example=samples.TYPE_NAME)]
    status: Annotated[TaskStatus, about("Only tasks in this status")] | None = None
    count: Count = 100
    offset: Offset = 0
    order: Annotated[Literal["asc", "desc"], about("")] = "desc"
    sort: Annotated[Literal["createdOn", "modifiedOn"], about("")] = "createdOn"


class TasksOfDeviceQuery(_Sorted):
    status: Annotated[DeviceTaskStatus, about("Only device tasks in this status")] | None = None


class EntriesQuery(Shape):
    count: Count = 100
    offset: Offset = 0
    status: Annotated[DeviceTaskStatus, about("Only device tasks in this status")] | None = None
    dids: Annotated[tuple[str, ...], ids("Only these devices", longest=IDS_MAX)] = ()


class HistoryQuery(Shape):
    did: Annotated[str, about("Only this device")] | None = None


class TaskChange(Shape):
    example = {"status": "CANCELLED"}

    status: Annotated[Literal["CANCELLED", "PROCESSING"], about("PROCESSING lets a paused roll-out go on")]


class Cancel(Shape):
    example = {"status": "CANCELLED"}

    status: Annotated[Literal["CANCELLED"], about("")]


class AcceptanceAnswer(Shape):
    example = {"acceptanceStatus": "ACCEPTED"}

    acceptance_status: Annotated[Literal["ACCEPTED", "REJECTED"], about("")]


def page_of(offset: int, count: int, status: str | None, sort: str, order: str) -> TaskPage:
    column = "modified_on" if sort == "modifiedOn" else "created_on"
    return TaskPage(offset, count, status, column, order == "desc")


def requested(body: NewTask) -> tuple[TaskRequest, Milliseconds | None]:
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
        protocol=update.protocol,
        needs_acceptance=body.needs_acceptance,
    )
    return request, None if scheduled_on is None else Milliseconds(scheduled_on)


def _given_parameters(given: Raw) -> _NewParameters:
    if not has_value(given):
        return _NewParameters()
    if not bytes(given).startswith(b"{"):
        raise ValidationFailed.of("taskParameters", invalid("must be an object"))
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
    raise ValidationFailed.of("taskParameters.value", invalid("must be a text, a number or a Boolean"))
