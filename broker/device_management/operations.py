"""Read, Write and Execute on one device (reference 15.2)."""

from broker.device_management.objects import ObjectMap
from broker.device_management.properties import DeviceProperties
from broker.device_management.reports import Reports
from broker.device_management.requests import TaskRequest, resource_to_read
from broker.device_management.sessions import (
    DeviceRefusedError,
    ManagedSession,
    Reading,
    UnreadableAnswerError,
    latest,
)
from broker.device_management.states import ErrorCode, TaskFailure
from broker.device_management.updates import task_failure
from broker.device_management.values import parse_value

_UNKNOWN = TaskFailure(ErrorCode.PROPERTY_NOT_FOUND, "No resource has this name now.")
_UNFIT = TaskFailure(ErrorCode.DEVICE_ERROR, "The value cannot be written to the resource.")
_NO_VALUE = TaskFailure(ErrorCode.DEVICE_ERROR, "The device's answer has no value for the property.")


class Operations:
    def __init__(self, objects: ObjectMap, properties: DeviceProperties, reports: Reports) -> None:
        self._objects = objects
        self._reports = reports
        self._properties = properties

    async def perform(self, session: ManagedSession, request: TaskRequest) -> TaskFailure | None:
        """Carry out the operation; return why it failed, None if it succeeded. Raises SessionLostError."""
        try:
            if request.operation == "R":
                return await self._read(session, request)
            return await self._change(session, request)
        except DeviceRefusedError as error:
            return task_failure(error)
        except UnreadableAnswerError as error:
            return TaskFailure(ErrorCode.DEVICE_ERROR, error.reason)

    async def _read(self, session: ManagedSession, request: TaskRequest) -> TaskFailure | None:
        path = resource_to_read(request, self._objects)
        if path is None:  # the model file is gone
            return _UNKNOWN
        readings = await session.read(path)
        if not any(self._objects.property_at(found) is not None for found in latest(readings)):
            return _NO_VALUE
        await self._reports.take(session.device, readings, is_read=True)
        return None

    async def _change(self, session: ManagedSession, request: TaskRequest) -> TaskFailure | None:
        named = self._objects.property_named(request.device_name)
        if named is None:
            return _UNKNOWN
        if request.operation == "E":
            await session.execute(named.path)
            return None
        try:
            value = parse_value(request.value or "", named.resource.type)
            await session.write(named.path, value)
        except ValueError:  # another model file describes the resource since the task was created
            return _UNFIT
        if "R" in named.resource.operations:
            await self._properties.report(session.device, [Reading(None, {named.path: value})])
        return None
