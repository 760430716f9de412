"""An Action that waits for its device: those of its parts that are operations of LWM2M, and their values."""

from dataclasses import dataclass
from typing import Any, Final

import msgspec

from broker.device_management.objects import ObjectMap
from broker.device_management.values import value_of
from broker.device_types.manifest import ResourceOperation, address_text
from broker.devices.registry import Device
from broker.envelope import Action

_decode: Final = msgspec.json.Decoder(dict[str, Any]).decode

#: The name of a part, its operation, and its parameters.
ActionCall = tuple[str, ResourceOperation, dict[str, Any]]


class NoFittingValueError(Exception):
    """The Action has no value that its resource can have. The text is a sentence."""


@dataclass(slots=True, eq=False)
class WaitingAction:
    """One Action message, with those of its Actions that are operations. `owner`: of the device when it came.

    `step` is the number of operations that have ended; an Execute counts from its beginning.
    """

    owner: str
    action: Action
    calls: tuple[ActionCall, ...]
    step: int = 0

    @property
    def name(self) -> str:
        return ", ".join(name for name, _, _ in self.calls)

    def said(self, name: str, problem: str) -> str:
        """Why the Action of this name failed; a message of several Actions names it."""
        return problem if len(self.calls) == 1 else f"{name}: {problem}"


def calls_of(device: Device, data: str) -> tuple[ActionCall, ...]:
    """The entries of an Action message that are operations."""
    operations = device.manifest.manifest.operations
    if not operations:
        return ()
    return tuple(
        (one["name"], operations[one["name"]], one.get("parameters") or {})
        for one in _decode(data)["actions"]
        if one["name"] in operations
    )


def written_value(objects: ObjectMap, operation: ResourceOperation, parameters: dict[str, Any]) -> Any:
    """The value that a Write sends. Raises NoFittingValueError."""
    value: Any = operation.value
    if operation.parameter is not None:
        value = parameters.get(operation.parameter)
        if not isinstance(value, bool | int | float | str):
            raise NoFittingValueError(f"The Action has no value of the parameter {operation.parameter}.")
    if (described := objects.described(operation.path)) is None:
        return value
    try:
        return value_of(value, described.type)
    except ValueError as error:
        where = address_text(operation.path)
        raise NoFittingValueError(f"{where} is {described.type.value}, and the Action has another value.") from error
