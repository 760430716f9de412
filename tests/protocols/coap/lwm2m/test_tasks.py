"""Tasks and updates over LWM2M, where other tests have device management or the protocol alone."""

import aiocoap
import pytest

from broker.device_management.configuration import ConfigurationChange
from broker.device_management.engine import Engine
from broker.device_management.requests import TaskRequest
from broker.device_management.tasks import Task
from broker.services import Services
from storage.firmware import FirmwareImageRecord
from storage.tasks import DeviceTaskRecord
from tests.broker.device_management.devices import settle
from tests.factories import KITCHEN, NOW_MS
from tests.protocols.coap.conftest import Time
from tests.protocols.coap.lwm2m.device import TEXT, TLV, MemoryTransport, ScriptedDevice, content, tlv

SLEEPS = "The device sleeps, and is asked when it is heard again."


@pytest.fixture
def management(services: Services) -> Engine:
    return services.device_management.registrations


class Operator:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._management = services.device_management

    async def enable(self) -> None:
        device = await self._services.devices.registry.find(KITCHEN)
        await self._management.configurations.change(device.type, ConfigurationChange(device_properties_enabled=True))

    async def task(self, target: str, kind: str = "R", **members: object) -> Task:
        await self.enable()
        device = await self._services.devices.registry.find(KITCHEN)
        given = {"dids": (KITCHEN,), "expires_after": 3600} | members
        request = TaskRequest(task_type=kind, target=target, **given)  # type: ignore[arg-type]
        task = await self._management.tasks.create(device.type, request, scheduled_on=None)
        await settle()
        return task

    async def update(self) -> Task:
        device = await self._services.devices.registry.find(KITCHEN)
        key = device.type.record.key
        image = FirmwareImageRecord("f" * 32, key, "2.0", "Application", 100, "0" * 64, NOW_MS)
        await self._services.core.database.write(lambda tx: tx.firmware.put(image))
        return await self.task("akc.update", "W", update_id=image.id)

    async def entry(self, task: Task) -> DeviceTaskRecord:
        device = await self._services.devices.registry.find(KITCHEN)
        return await self._management.tasks.entry_of(task.record, device)

    async def history(self, task: Task) -> list[str]:
        return [row.status for _, row in await self._management.tasks.history(task.record, None)]

    async def waits_for(self, task: Task) -> str | None:
        record = (await self._management.tasks.shown(task.record)).record
        (explained,) = await self._management.waiting.explain(record, [await self.entry(task)])
        return explained.waits_for


@pytest.fixture
def operator(services: Services) -> Operator:
    return Operator(services)


async def test_half_of_an_answer_fails_with_the_reason(device: ScriptedDevice, operator: Operator) -> None:
    await device.register()
    await settle()
    device.replies["GET /3/0"] = content(TLV, tlv((3, 0, b"Example"))[:-3])
    task = await operator.task("deviceProperties.device")
    entry = await operator.entry(task)
    assert (entry.status, entry.error_code) == ("FAILED", "DEVICE_ERROR")
    assert entry.error_message == "The answer to Read /3/0 has a TLV entry of 7 bytes, and 4 follow."


async def test_a_sleeping_device_is_asked_when_it_is_heard(
    device: ScriptedDevice, operator: Operator, time: Time
) -> None:
    await device.register(f"ep={KITCHEN}", "lt=3600", "b=UQ")
    await settle()
    time.now += 94
    device.requests.clear()
    task = await operator.task("deviceProperties.device.manufacturer")
    assert (device.requests, await operator.waits_for(task)) == ([], SLEEPS)
    device.replies["GET /3/0/0"] = content(TEXT, b"Example")
    await device.update()
    await settle()
    assert (await operator.entry(task)).status == "SUCCEEDED"


async def test_a_device_in_queue_mode_pulls_its_firmware(
    device: ScriptedDevice, operator: Operator, time: Time
) -> None:
    """It takes the address, sleeps while it pulls the image, and says so when it has it."""
    device.replies["GET /5/0"] = content(TLV, tlv((3, 3, b"\0"), (3, 5, b"\0")))
    device.replies["GET /5/0/3"] = device.replies["GET /5/0/5"] = content(TEXT, b"0")
    await device.register(f"ep={KITCHEN}", "lt=3600", "b=UQ")
    await settle()
    task = await operator.update()
    assert "PUT /5/0/1" in device.requests
    time.now += 94
    assert await operator.waits_for(task) == SLEEPS
    device.requests.clear()
    device.replies["GET /5/0/3"] = content(TEXT, b"2")
    await device.update()  # it is observed and read anew: the observation says that the image is there
    device.replies["GET /5/0"] = content(TLV, tlv((3, 3, b"\2"), (3, 5, b"\0")))
    await device.notify("/5/0", 2, device.replies["GET /5/0"])  # type: ignore[arg-type]
    await settle()
    assert "POST /5/0/2" in device.requests
    device.replies["GET /5/0/3"], device.replies["GET /5/0/5"] = content(TEXT, b"0"), content(TEXT, b"1")
    device.replies["GET /3/0/3"] = content(TEXT, b"2.0")
    assert (await device.register(f"ep={KITCHEN}", "lt=3600", "b=UQ")).code == aiocoap.CREATED
    await settle()
    assert (await operator.entry(task)).status == "SUCCEEDED"


READ_FIRST = "The device has registered; its properties are read first."


async def test_a_task_for_a_device_whose_registration_was_just_answered_waits(
    device: ScriptedDevice, transport: MemoryTransport, operator: Operator
) -> None:
    """Issue 44, 1: it answers nothing after its 2.01, and the task waits for its next update (reference 15.2)."""
    device.replies["GET /3/0"] = lambda _: None
    await operator.enable()
    await device.register()
    task = await operator.task("deviceProperties.device.manufacturer")
    assert ((await operator.entry(task)).status, await operator.waits_for(task)) == ("QUEUED", READ_FIRST)
    by_filter = await operator.task(
        "deviceProperties.device.manufacturer", dids=None, filter="systemProperties.connection.protocol=LWM2M"
    )
    assert (await operator.entry(by_filter)).status == "QUEUED"
    assert await operator.history(task) == ["REQUESTED", "QUEUED"]
    transport.session.close()  # the request is lost
    await settle()
    assert (await operator.entry(task)).status == "QUEUED"
