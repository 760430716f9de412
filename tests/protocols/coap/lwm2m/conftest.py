"""The LWM2M server on real services, device management of the tests, and devices."""

from collections.abc import AsyncIterator, Callable

import pytest
import trio

from broker.device_management.sessions import (
    ManagedSession,
    ObservationSettings,
    Reading,
    Readings,
    ResourcePath,
    ResourceValue,
    latest,
)
from broker.devices.registry import Device
from broker.services import Services
from protocols.coap.lwm2m.datagrams import Lwm2mEndpoint
from protocols.coap.lwm2m.server import Lwm2mServer
from tests.factories import KITCHEN, KITCHEN_TOKEN, World
from tests.protocols.coap.conftest import Time
from tests.protocols.coap.lwm2m.device import PATIENCE_SECONDS, MemoryTransport, ScriptedDevice


class Management:
    """Records the reports of the server to device management."""

    def __init__(self) -> None:
        self.observation = ObservationSettings(is_enabled=True, pmin=10, pmax=60)
        self.sessions: list[ManagedSession] = []
        self.asked_about: list[str] = []
        self.admitted: list[str] = []
        self.may_admit = trio.Event()
        self.may_admit.set()
        self.heard_of: set[str] = set()
        self.readings: list[Reading] = []
        self.over: list[ManagedSession] = []
        self.read: list[Reading] = []  # the answers to Read among the readings
        self.unreadable: list[tuple[str, bytes, str]] = []
        self.values: dict[ResourcePath, ResourceValue] = {}
        self._changed = trio.Event()

    async def observation_of(self, device: Device) -> ObservationSettings:
        self.asked_about.append(device.id)
        return self.observation

    def begin(self, session: ManagedSession) -> None:
        """There is one node."""

    async def begun(self, session: ManagedSession) -> None:
        """There is one node."""

    async def admit(self, device: Device) -> None:
        await self.may_admit.wait()
        self.admitted.append(device.id)

    async def registered(self, session: ManagedSession) -> None:
        self.sessions.append(session)
        self._change()

    def ended(self, session: ManagedSession) -> None:
        self.over.append(session)
        self._change()

    async def receive_values(self, device: Device, readings: Readings, *, is_read: bool = False) -> None:
        self.heard_of.add(device.id)
        self.read += list(readings) if is_read else []
        self.readings.extend(readings)
        self.values.update(latest(readings))
        self._change()

    def receive_unreadable(self, device: Device, payload: bytes, reason: str) -> None:
        self.unreadable.append((device.id, payload, reason))
        self._change()

    def _change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def wait(self, condition: Callable[[], object]) -> None:
        with trio.fail_after(PATIENCE_SECONDS):
            while not condition():
                await self._changed.wait()

    async def session(self, number: int = 1) -> ManagedSession:
        """The session of the n-th report that a device has registered or updated."""
        await self.wait(lambda: len(self.sessions) >= number)
        return self.sessions[number - 1]


@pytest.fixture
def management() -> Management:
    return Management()


@pytest.fixture
async def server(services: Services, world: World, time: Time, management: Management) -> AsyncIterator[Lwm2mServer]:
    server = Lwm2mServer(services, management, now=time, pause_seconds=0)
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run)
        yield server
        nursery.cancel_scope.cancel()


@pytest.fixture
async def lwm2m(server: Lwm2mServer) -> AsyncIterator[Lwm2mEndpoint]:
    endpoint = Lwm2mEndpoint(server, chance=lambda: 0.0)
    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(endpoint.store_forever)
        yield endpoint
        nursery.cancel_scope.cancel()


@pytest.fixture
def transport(lwm2m: Lwm2mEndpoint) -> MemoryTransport:
    return MemoryTransport(lwm2m, KITCHEN, KITCHEN_TOKEN)


@pytest.fixture
async def device(transport: MemoryTransport) -> AsyncIterator[ScriptedDevice]:
    device = ScriptedDevice(transport, KITCHEN)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(device.run)
        yield device
        nursery.cancel_scope.cancel()
