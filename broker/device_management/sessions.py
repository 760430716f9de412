"""The port between device management and the server to which devices register (reference 15 and 18).

The server (`protocols/coap/lwm2m`) implements `ManagedSession` and reports to `RegistrationPort`; tasks and properties
use the sessions and know nothing of the protocol.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from broker.devices.registry import Device
from storage.keys import Milliseconds

#: Numbers of an object, an instance, a resource and a resource instance, from the left; as many as the path names.
ResourcePath = tuple[int, ...]

#: Value of a resource. A resource with several instances is a list in the order of the instances. Times are ints in
#: milliseconds.
ResourceValue = str | int | float | bool | bytes | list[str] | list[int] | list[float] | list[bool] | list[bytes]

Values = Mapping[ResourcePath, ResourceValue]


class Reading(msgspec.Struct, frozen=True):
    """Values of one time, in milliseconds. None: the device named no time before now, so they are of their arrival."""

    ts: Milliseconds | None
    values: Values


#: Readings of a device in the order of their arrival.
Readings = Sequence[Reading]


def latest(readings: Iterable[Reading]) -> Values:
    """The newest value of each resource."""
    return {path: value for reading in readings for path, value in reading.values.items()}


class SessionLostError(Exception):
    """The device did not answer, or its registration ended: a communication failure (reference 15.2)."""


class NotSentError(SessionLostError):
    """The registration ended before the request was sent."""


@dataclass
class DeviceRefusedError(Exception):
    """The device answered with an error. `code` is the CoAP code, for example `4.05`."""

    code: str


@dataclass
class UnreadableAnswerError(Exception):
    """The device's answer cannot be read. `reason` is one sentence for the operator."""

    reason: str


class ManagedSession(Protocol):
    """A registered device. Its operations are carried out one at a time in the order of the calls.

    Each waits for the device's answer, however long the device sleeps (queue mode), and raises SessionLostError,
    NotSentError, DeviceRefusedError or UnreadableAnswerError.
    """

    @property
    def device(self) -> Device: ...

    @property
    def offers(self) -> frozenset[ResourcePath]:
        """Objects and object instances that the device named at its registration."""

    @property
    def is_over(self) -> bool:
        """The registration has ended; every operation raises SessionLostError."""

    @property
    def has_queue_mode(self) -> bool:
        """The device sleeps between the times when it says something."""

    @property
    def is_asleep(self) -> bool:
        """The device is in queue mode and is not listening now: operations wait until it is heard again."""

    @property
    def unobserved(self) -> Mapping[ResourcePath, str]:
        """Why resources of the Manifest are not observed: a sentence by path."""

    async def wait_awake(self) -> None:
        """Return when the device is awake, or the registration has ended. Raises nothing."""

    async def read(self, path: ResourcePath) -> Readings:
        """The values at a resource, or of all resources at an object instance."""

    async def write(self, path: ResourcePath, value: ResourceValue) -> None:
        """Raises also ValueError for a list, or a value of more than DEVICE_VALUE_BYTES; nothing is sent then."""

    async def execute(self, path: ResourcePath) -> None: ...


class ObservationSettings(msgspec.Struct, frozen=True):
    """Attributes of a device's notifications, from the configuration of the device's type.

    `pmin` and `pmax` are in seconds. Without `is_enabled` the device's properties are neither read nor observed.
    `paths` are the resources whose values fields of the Manifest have, at most LWM2M_PATHS_MAX; of those in `settable`
    values may be wanted, so they are reported at once.
    """

    is_enabled: bool
    pmin: int
    pmax: int
    paths: tuple[ResourcePath, ...] = ()
    settable: frozenset[ResourcePath] = frozenset()

    def pmin_of(self, path: ResourcePath) -> int:
        return 0 if path in self.settable else self.pmin


class RegistrationPort(Protocol):
    """Interface of device management to the server to which devices register."""

    async def observation_of(self, device: Device) -> ObservationSettings: ...

    def begin(self, session: ManagedSession) -> None:
        """The device registers: other nodes hear of it with the commit to come."""

    async def begun(self, session: ManagedSession) -> None:
        """Wait for that commit, before the device is told. Raises StoreError."""

    async def admit(self, device: Device) -> None:
        """Make it durable that the device has registered, before it is told so: from now on tasks wait for it.

        Raises StoreError.
        """

    async def registered(self, session: ManagedSession) -> None:
        """The device has registered and its properties were read: its tasks begin. An update calls this again."""

    def ended(self, session: ManagedSession) -> None:
        """The registration has ended or was replaced."""

    async def receive_values(self, device: Device, readings: Readings, *, is_read: bool = False) -> None:
        """Store what the device answered, notified or sent; return when it is durable. Raises StoreError.

        Values without a property are dropped. An older value never replaces a newer one. `is_read`: they are the answer
        to a Read, which makes no message of the fields with `lwm2m`.
        """

    def receive_unreadable(self, device: Device, payload: bytes, reason: str) -> None:
        """Keep a notification for a field of the Manifest that cannot be read, among the device's failed messages."""
