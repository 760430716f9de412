"""What a rule sees when it is evaluated: values, the message, the time, devices, outputs of models."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from storage.keys import DeviceKey, DeviceTypeKey, Milliseconds, UserKey

Value = bool | int | float | str | list["Value"]
"""A value of a field, as it was normalised (reference 8.4)."""

NestedValue = Value | dict[str, "NestedValue"]
"""A value of a parameter: a group of parameters is an object."""


@dataclass(frozen=True, slots=True)
class CurrentMessage:
    """The message that causes an evaluation. `owner` owns the device, `data` is its normalised data, decoded."""

    device: DeviceKey
    device_type: DeviceTypeKey
    owner: UserKey
    data: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Seen:
    """A value that an evaluation looked at. `value` None: the device never sent the field. `at_ms`: its message's cts.

    `device_id` is empty when the rule does not name the device.
    """

    device: DeviceKey
    field: str
    value: Value | None
    at_ms: Milliseconds | None


class View(Protocol):
    """The state of the world at one moment. One view serves all rules that are evaluated at that moment."""

    @property
    def now_ms(self) -> Milliseconds:
        """The time of the evaluation: of a message its cts, otherwise when the minute began or the timer was due."""

    @property
    def message(self) -> CurrentMessage | None:
        """The message that is evaluated; None when time is the cause."""

    def value(self, device: DeviceKey, field: str) -> Value | None:
        """The last known value of a field by its dotted path, that of the current message included; None: unknown."""

    def value_ms(self, device: DeviceKey, field: str) -> Milliseconds | None:
        """The cts of the message that brought the last known value; None: unknown."""

    def devices_of(self, owner: UserKey, device_type: DeviceTypeKey) -> Collection[DeviceKey]:
        """The devices of a type that a user owns, in a stable order."""

    def model_output(self, rule: int, condition: int, device: DeviceKey, field: str) -> Value | None:
        """What the model of a condition with a `transformer` says to the last value of the condition's field; None
        while the model is not ready or the value is not known.

        A prediction is the predicted value, an anomaly detection says true or false.
        """


class _NoView:
    """Nothing was ever sent, and nobody has a device."""

    now_ms: Final = Milliseconds(0)
    message: Final = None

    def value(self, device: DeviceKey, field: str) -> Value | None:  # noqa: ARG002
        return None

    def value_ms(self, device: DeviceKey, field: str) -> Milliseconds | None:  # noqa: ARG002
        return None

    def devices_of(self, owner: UserKey, device_type: DeviceTypeKey) -> Collection[DeviceKey]:  # noqa: ARG002
        return ()

    def model_output(self, rule: int, condition: int, device: DeviceKey, field: str) -> Value | None:  # noqa: ARG002
        return None


NO_VIEW: Final[View] = _NoView()
"""For what depends on nothing, such as an operation on constants."""
