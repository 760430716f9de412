"""Tasks and updates over LWM2M, where other tests have device management or the protocol alone."""

import json
from urllib.parse import urlsplit

import aiocoap
import pytest
import trio

from broker.device_management.configuration import ConfigurationChange
from broker.device_management.engine import ManagementEngine
from broker.device_management.requests import TaskRequest
from broker.device_management.tasks import Task
from broker.services import Services
from protocols.coap.endpoint import CoapEndpoint
from protocols.coap.lwm2m.datagrams import Lwm2mEndpoint
from storage.firmware import FirmwareImageRecord
from storage.tasks import DeviceTaskRecord
from tests.broker.device_management.devices import settle
from tests.factories import KITCHEN, KITCHEN_TOKEN, NOW_MS
from tests.protocols.coap.conftest import Time
from tests.protocols.coap.firmware import ANYWHERE, chunks_of, content_of
from tests.protocols.coap.lwm2m.device import (
    LWM2M_JSON,
    SENML_CBOR,
    SENML_JSON,
    TEXT,
    TLV,
    MemoryTransport,
    ScriptedDevice,
    content,
    tlv,
)
from tests.protocols.coap.lwm2m.test_formats import senml_cbor
from tests.protocols.coap.peers import Peer
from tests.protocols.coap.test_images import fetch

SLEEPS = "The device sleeps, and is asked when it is heard again."


@pytest.fixture
def management(services: Services) -> ManagementEngine:
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
    await device.update()  # it is observed and read again: the observation says that the image is there
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


async def test_records_with_times_over_notify_send_and_read(
    device: ScriptedDevice, operator: Operator, services: Services
) -> None:
    """Issue 44, 4: the newest value stays with its time, whatever it came by."""
    now = NOW_MS // 1000
    await operator.enable()
    device.replies["GET /3/0"] = content(TLV, b"")
    await device.register()
    await settle()

    async def level() -> tuple[object, int]:
        kitchen = await services.devices.registry.find(KITCHEN)
        properties = (await services.device_management.properties.of(kitchen, with_times=True)).reported
        found = properties["device"]["batteryLevel"]
        return found["value"], found["ts"] - NOW_MS

    async def send(*records: object) -> None:
        assert (await device.send(SENML_JSON, json.dumps(records).encode())).code == aiocoap.CHANGED

    await send(
        {"bn": "/3/0/", "bt": now, "n": "9", "v": 25, "t": -50}, *({"n": "9", "v": 9, "t": -t} for t in (60, 70))
    )
    assert await level() == (25, -50_000)
    await send({"bn": "/3/0/", "bt": now - 3600, "n": "9", "v": 11})
    assert await level() == (25, -50_000)
    notified = {"bn": "/3/0/", "bt": now, "e": [{"n": "9", "v": 80, "t": -40}, {"n": "9", "v": 40, "t": -3000}]}
    await device.notify("/3/0", 2, content(LWM2M_JSON, json.dumps(notified).encode()))
    await settle()
    assert await level() == (80, -40_000)
    answered = senml_cbor([{"bn": "/3/0/", "bt": now - 30, "n": "9", "v": 70}, {"n": "9", "v": 69, "t": -9}])
    device.replies["GET /3/0/9"] = content(SENML_CBOR, answered)
    await operator.task("deviceProperties.device.batteryLevel")
    assert await level() == (70, -30_000)


async def test_firmware_is_fetched_by_coap_and_goes_on_after_a_power_cut(
    device: ScriptedDevice,
    management: ManagementEngine,
    operator: Operator,
    endpoint: CoapEndpoint,
    peer: Peer,
    services: Services,
    transport: MemoryTransport,
    lwm2m: Lwm2mEndpoint,
) -> None:
    """Issue 44, 14: the device keeps what it has, registers again with state 1, and fetches the rest."""
    content_ = content_of(100_000)
    services.core.site.listens_on({"coap": ANYWHERE})
    light = await services.devices.registry.find(KITCHEN)
    image = await services.device_management.images.add(
        light.type, chunks_of(content_), version="2.0", kind="Application", sha256=None
    )
    written: list[str] = []

    def write(request: aiocoap.Message) -> aiocoap.Message:
        written.append(request.payload.decode())
        return device.answered(request, (aiocoap.CHANGED, None, b""))

    def states(state: int, result: int = 0) -> None:
        device.replies["GET /5/0"] = content(TLV, tlv((3, 3, bytes((state,))), (3, 5, bytes((result,)))))
        device.replies["GET /5/0/3"] = content(TEXT, str(state).encode())
        device.replies["GET /5/0/5"] = content(TEXT, str(result).encode())

    device.replies["PUT /5/0/1"] = write
    states(0)
    await device.register()
    task = await operator.task("akc.update", "W", update_id=image.id, protocol="coap")
    assert written[0].startswith("coap://localhost:5683/v1.1/updates/urls/")
    path = urlsplit(written[0]).path
    async with trio.open_nursery() as nursery:
        nursery.start_soon(endpoint.read_images_forever)
        kept = await fetch(peer, path, blocks=48)
        assert await operator.waits_for(task) == "The device downloads the image: 49 % so far."
        transport.session.close()  # the power is cut
        endpoint.close(peer.session())
        states(1)
        device.transport = MemoryTransport(lwm2m, KITCHEN, KITCHEN_TOKEN)
        nursery.start_soon(device.run)
        await device.register()
        await settle()
        assert await fetch(Peer(endpoint, ("192.0.2.9", 1)), path, kept) == content_
        states(2)
        await device.notify("/5/0", 2, device.replies["GET /5/0"])  # type: ignore[arg-type]
        await settle()
        assert "POST /5/0/2" in device.requests
        states(0, 1)
        device.replies["GET /3/0/3"] = content(TEXT, b"2.0")
        await device.register()
        await settle()
        nursery.cancel_scope.cancel()
    assert ((await operator.entry(task)).status, len(written)) == ("SUCCEEDED", 1)
