"""Devices that register without a protocol, and a fleet of them in the store."""

from dataclasses import dataclass, field

import trio
import trio.testing

from broker.clock import Clock
from broker.device_management.configuration import ConfigurationChange
from broker.device_management.images import file_name
from broker.device_management.objects import FIRMWARE_VERSION, PACKAGE_URI, RESULT, STATE, UPDATE
from broker.device_management.requests import TaskRequest
from broker.device_management.sessions import (
    DeviceRefusedError,
    NotSentError,
    Reading,
    Readings,
    ResourcePath,
    ResourceValue,
)
from broker.device_management.tasks import Task
from broker.device_types.catalog import DeviceType
from broker.devices.registry import Device
from broker.ids import new_id
from broker.services import Services
from storage.firmware import FirmwareImageRecord
from storage.keys import Milliseconds, UserKey
from storage.tasks import DeviceTaskRecord, TaskHistoryRecord
from storage.transaction import Transaction
from tests.factories import LIGHT_TYPE, NOW_MS, new_device

VERSION = "2.0"


def mock_time() -> Clock:
    """The wall clock that moves with trio's clock."""

    def now_ms() -> Milliseconds:
        return Milliseconds(NOW_MS + int(trio.current_time() * 1000))

    return Clock(now_ms, lambda: int(trio.current_time() * 1000))


@dataclass
class FakeSession:
    """A registered device: resources by path, what it refuses, and whether it answers."""

    device: Device
    values: dict[ResourcePath, ResourceValue] = field(default_factory=dict)
    offers: frozenset[ResourcePath] = frozenset({(3, 0), (5, 0)})
    is_over: bool = False
    is_asleep: bool = False
    has_queue_mode: bool = False
    refuses: dict[ResourcePath, str] = field(default_factory=dict)
    unobserved: dict[ResourcePath, str] = field(default_factory=dict)
    #: What it does, and never answers.
    never_answers: set[ResourcePath] = field(default_factory=set)
    #: Its server finds that no value can be written.
    cannot_send: bool = False
    #: Operations in their order, such as `W /3/0/14 +01:00`.
    done: list[str] = field(default_factory=list)
    #: Set while the device answers; a device that sleeps answers later.
    is_awake: trio.Event = field(default_factory=trio.Event)

    def __post_init__(self) -> None:
        self.is_awake.set()
        for path, value in ((STATE, 0), (RESULT, 0), (FIRMWARE_VERSION, "1.0"), ((3, 0, 0), "Acme")):
            self.values.setdefault(path, value)

    def sleep(self) -> None:
        self.is_awake = trio.Event()

    async def wait_awake(self) -> None:
        await self.is_awake.wait()

    async def read(self, path: ResourcePath) -> Readings:
        await self._operation("R", path)
        found = {known: value for known, value in self.values.items() if known[: len(path)] == path}
        if not found:
            raise DeviceRefusedError("4.04")
        return [Reading(None, found)]

    async def write(self, path: ResourcePath, value: ResourceValue) -> None:
        if self.cannot_send:
            raise ValueError("too long")
        await self._operation("W", path, " " + str(value))
        self.values[path] = value
        if path == PACKAGE_URI:
            self.values |= {STATE: 1 if value else 0, RESULT: 0}

    async def execute(self, path: ResourcePath) -> None:
        await self._operation("E", path)
        if path == UPDATE:
            self.values[STATE] = 3

    async def _operation(self, letter: str, path: ResourcePath, more: str = "") -> None:
        await self.is_awake.wait()
        await trio.lowlevel.checkpoint()
        if self.is_over:
            raise NotSentError
        self.done.append(f"{letter} /{'/'.join(map(str, path))}{more}")
        if path in self.refuses:
            raise DeviceRefusedError(self.refuses[path])
        if path in self.never_answers:
            await trio.sleep_forever()


class Fleet:
    """Devices of the light type, their sessions, and the calls that tests make."""

    def __init__(self, services: Services, type_: DeviceType) -> None:
        self.services = services
        self.type = type_
        self.management = services.device_management
        self.devices: list[Device] = []

    @classmethod
    async def of(cls, services: Services, size: int, *, enabled: bool = True) -> "Fleet":
        """Add devices; the next to come is the last to begin."""
        type_ = await services.device_types.catalog.find(LIGHT_TYPE)
        fleet = cls(services, type_)
        await fleet.management.configurations.change(type_, ConfigurationChange(device_properties_enabled=enabled))
        records = [
            new_device(
                f"{number:032x}",
                owner=UserKey(1),
                device_type=type_.record.key,
                name=f"Device {number}",
                manifest_version=1,
                manifest_version_policy="LATEST",
                enabled=True,
                now_ms=NOW_MS,
            )
            for number in range(1000, 1000 + size)
        ]
        keys = await services.core.database.write(lambda tx: [tx.devices.put_device(record) for record in records])
        fleet.devices = [await services.devices.registry.get(key) for key in keys]
        return fleet

    async def register(self, device: Device) -> FakeSession:
        session = FakeSession(device)
        await register(self.services, session)
        return session

    async def had_registered(self, *devices: Device) -> None:
        """They have registered before, and are not connected."""
        for device in devices or self.devices:
            await self.management.properties.note_registration(device.key)

    def leave(self, session: FakeSession) -> None:
        session.is_over = True
        session.is_awake.set()
        self.management.registrations.ended(session)

    async def say(self, session: FakeSession, *, state: int, result: int = 0) -> None:
        """The device notifies of its firmware object."""
        values: dict[ResourcePath, ResourceValue] = {STATE: state, RESULT: result}
        session.values |= values
        await self.management.registrations.receive_values(session.device, [Reading(None, values)])

    async def image(self, version: str = VERSION, *, size: int = 1000) -> FirmwareImageRecord:
        """An image, and zeros as its file."""
        record = FirmwareImageRecord(
            new_id(), self.type.record.key, version, "Application", size, "0" * 64, Milliseconds(NOW_MS)
        )

        def work(tx: Transaction) -> None:
            tx.firmware.put(record)
            tx.files.append_to(file_name(record.id), bytes(size))

        await self.services.core.database.write(work)
        return record

    async def task(self, target: str, kind: str = "R", *, at: int | None = None, **members: object) -> Task:
        """A task for all devices of the fleet, unless it names some."""
        given = {"dids": tuple(device.id for device in self.devices), "expires_after": 3600} | members
        request = TaskRequest(task_type=kind, target=target, **given)  # type: ignore[arg-type]
        return await self.management.tasks.create(
            self.type, request, scheduled_on=None if at is None else Milliseconds(at)
        )

    async def update(self, **members: object) -> Task:
        given = {"update_id": (await self.image()).id} | members
        return await self.task("akc.update", "W", at=None, **given)

    async def entry(self, task: Task, device: Device | None = None) -> DeviceTaskRecord:
        return await self.management.tasks.entry_of(task.record, device or self.devices[0])

    async def status(self, task: Task, device: Device | None = None) -> str:
        return (await self.entry(task, device)).status

    async def task_status(self, task: Task) -> str:
        return (await self.management.tasks.shown(task.record)).record.status

    async def history(self, task: Task, device: Device | None = None) -> list[TaskHistoryRecord]:
        rows = await self.management.tasks.history(task.record, (device or self.devices[0]).key)
        return [row for _, row in rows]

    async def steps(self, task: Task, device: Device | None = None) -> list[str]:
        """The statuses of a device task after REQUESTED in their order, with error codes."""
        first, *rows = await self.history(task, device)
        assert (first.status, first.error_code) == ("REQUESTED", None)
        return [row.status if row.error_code is None else f"{row.status} {row.error_code}" for row in rows]

    async def waits_for(self, task: Task, device: Device | None = None) -> str | None:
        entry = await self.entry(task, device)
        record = (await self.management.tasks.shown(task.record)).record
        (explained,) = await self.management.waiting.explain(record, [entry])
        return explained.waits_for


async def register(services: Services, session: FakeSession) -> None:
    """A registration as the server reports it: before its answer, and after the device was read."""
    registrations = services.device_management.registrations
    await registrations.admit(session.device)
    await registrations.registered(session)


async def settle() -> None:
    """Let everything happen that waits for no time."""
    await trio.testing.wait_all_tasks_blocked()
