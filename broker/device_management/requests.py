"""Requests for tasks: their checks, and their form in the store (reference 15.2)."""

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from broker.device_management.objects import PACKAGE_URI, ObjectMap, Property
from broker.device_management.properties import check_server_properties
from broker.device_management.sessions import ResourcePath
from broker.device_management.values import parse_value
from broker.errors import REQUIRED, Finding, ValidationFailed, choice, invalid, too_high, too_long, too_low
from config.limits import (
    DEVICE_VALUE_BYTES,
    PACKAGE_URI_BYTES,
    TASK_DIDS_MAX,
    TASK_EXPIRES_SECONDS,
    TASK_SCHEDULE_DAYS,
    TASK_VALUE_BYTES,
)
from storage.keys import Milliseconds

UPDATE_PROPERTY: Final = "akc.update"
_SERVER: Final = "serverProperties."
_DEVICE: Final = "deviceProperties."
_DAY_MS: Final = 86_400_000
_OPERATIONS: Final = {"r": "R", "read": "R", "w": "W", "write": "W", "e": "E", "execute": "E"}


class RolloutPlan(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """How an update reaches its devices step by step. None: without this bound. Percentages are 0 to 100."""

    devices_per_minute: int | None = None
    canary_devices: int | None = None  # the first devices to begin; the others wait until these have ended
    canary_success_percent: int = 100  # of the canary devices, or the roll-out pauses
    abort_percent: int | None = None  # of all devices; when more have failed, no other device begins


class TaskRequest(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A task as it was asked for. `task_type` is spelled as the creator spelled it."""

    task_type: str
    target: str = msgspec.field(name="property")  # what the task reads, writes or executes
    expires_after: int
    dids: tuple[str, ...] | None = None
    filter: str | None = None
    value: str | None = None
    update_id: str | None = None
    rollout: RolloutPlan | None = None
    protocol: str | None = None  # by which devices fetch the image; None is that of REST
    needs_acceptance: bool = False

    @property
    def operation(self) -> str:
        """R, W or E."""
        return _OPERATIONS[self.task_type.lower()]

    @property
    def is_update(self) -> bool:
        return self.target == UPDATE_PROPERTY

    @property
    def server_path(self) -> str | None:
        """The dotted path of a server property; None for a task that needs the device."""
        return self.target.removeprefix(_SERVER) if self.target.startswith(_SERVER) else None

    @property
    def device_name(self) -> str:
        """The name below `deviceProperties`."""
        return self.target.removeprefix(_DEVICE)


_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(TaskRequest)


def encode_task_request(request: TaskRequest) -> str:
    return _encode(request).decode()


def decode_task_request(text: str) -> TaskRequest:
    return _decoder.decode(text)


def check_task_request(
    request: TaskRequest,
    objects: ObjectMap,
    *,
    scheduled_on: int | None,
    now_ms: Milliseconds,
    properties_enabled: bool,
) -> None:
    """Raises ValidationFailed with every finding."""
    findings = [
        *_wrong_choice(request),
        *_wrong_times(request, scheduled_on, now_ms),
        *_wrong_property(request, objects, properties_enabled),
        *_wrong_update(request),
    ]
    if findings:
        raise ValidationFailed(tuple(findings))


def _wrong_choice(request: TaskRequest) -> Iterator[Finding]:
    if request.task_type.lower() not in _OPERATIONS:
        yield Finding("taskType", (invalid(choice(_OPERATIONS)),))
    if request.dids is not None and request.filter is not None:
        yield Finding("filter", ("Cannot be combined with dids",))
    if request.dids is not None and len(request.dids) > TASK_DIDS_MAX:
        yield Finding("dids", (too_long(TASK_DIDS_MAX),))
    if request.value is not None and len(request.value.encode()) > TASK_VALUE_BYTES:
        yield Finding("taskParameters.value", (too_long(TASK_VALUE_BYTES),))


def _wrong_times(request: TaskRequest, scheduled_on: int | None, now_ms: Milliseconds) -> Iterator[Finding]:
    lowest, _, highest = TASK_EXPIRES_SECONDS
    if request.expires_after < lowest:
        yield Finding("taskParameters.expiresAfter", (too_low(lowest),))
    elif request.expires_after > highest:
        yield Finding("taskParameters.expiresAfter", (too_high(highest),))
    if scheduled_on is not None and not now_ms < scheduled_on <= now_ms + TASK_SCHEDULE_DAYS * _DAY_MS:
        yield Finding("scheduledOn", (invalid(f"must be in the future, and within {TASK_SCHEDULE_DAYS} days"),))


def _wrong_property(request: TaskRequest, objects: ObjectMap, properties_enabled: bool) -> Iterator[Finding]:
    if request.is_update or request.task_type.lower() not in _OPERATIONS:
        return
    if (path := request.server_path) is not None:
        yield from _wrong_server_property(request, path)
    elif not request.target.startswith(_DEVICE):
        yield Finding("property", (invalid("must begin with serverProperties or deviceProperties"),))
    elif not properties_enabled:
        yield Finding("property", ("Device properties are not enabled for the device type",))
    elif request.operation == "R":
        if resource_to_read(request, objects) is None:
            yield Finding("property", (invalid("is no resource that can be read"),))
    else:
        yield from _wrong_change(request, objects.property_named(request.device_name))


def _wrong_server_property(request: TaskRequest, path: str) -> Iterator[Finding]:
    if request.operation == "E":
        yield Finding("taskType", (invalid("server properties are read and written, not executed"),))
    try:
        check_server_properties(nested_value(path, ""))
    except ValidationFailed:
        yield Finding("property", (invalid("is no server property"),))
    if request.operation == "W" and request.value is None:
        yield Finding("taskParameters.value", (REQUIRED,))


def _wrong_change(request: TaskRequest, named: Property | None) -> Iterator[Finding]:
    if named is None or request.operation not in named.resource.operations:
        yield Finding("property", (invalid("is no resource with this operation"),))
    elif request.operation == "W" and request.value is None:
        yield Finding("taskParameters.value", (REQUIRED,))
    elif request.operation == "W":
        try:
            parse_value(request.value or "", named.resource.type)
        except ValueError:
            yield Finding("taskParameters.value", (invalid(f"must be of the type {named.resource.type.value}"),))
            return
        longest = PACKAGE_URI_BYTES if named.path == PACKAGE_URI else DEVICE_VALUE_BYTES
        if len((request.value or "").encode()) > longest:
            yield Finding("taskParameters.value", (too_long(longest),))


def _wrong_update(request: TaskRequest) -> Iterator[Finding]:
    if not request.is_update:
        if (request.update_id, request.rollout, request.protocol) != (None, None, None):
            yield Finding("taskParameters.update", (f"Only with property {UPDATE_PROPERTY}",))
        if request.needs_acceptance:
            yield Finding("needsAcceptance", (f"Only with property {UPDATE_PROPERTY}",))
        return
    if request.update_id is None:
        yield Finding("taskParameters.update.updateId", (REQUIRED,))
    if (plan := request.rollout) is not None:
        for name, value, highest in (
            ("devicesPerMinute", plan.devices_per_minute, 1_000_000),
            ("canaryDevices", plan.canary_devices, 1_000_000),
            ("canarySuccessPercent", plan.canary_success_percent, 100),
            ("abortPercent", plan.abort_percent, 100),
        ):
            lowest = 0 if name.endswith("Percent") else 1
            if value is not None and value < lowest:
                yield Finding(f"taskParameters.update.rollout.{name}", (too_low(lowest),))
            elif value is not None and value > highest:
                yield Finding(f"taskParameters.update.rollout.{name}", (too_high(highest),))


def resource_to_read(request: TaskRequest, objects: ObjectMap) -> ResourcePath | None:
    """The path that a Read asks the device for: a resource or an object instance. None for an unknown property."""
    if (group := objects.group_named(request.device_name)) is not None:
        return group
    named = objects.property_named(request.device_name)
    return None if named is None or "R" not in named.resource.operations else named.path


def nested_value(path: str, value: str) -> dict[str, Any]:
    """A value at a dotted path, as an object to merge."""
    *groups, name = path.split(".")
    tree: dict[str, Any] = {name: value}
    for group in reversed(groups):
        tree = {group: tree}
    return tree
