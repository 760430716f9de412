"""Steps after a registration, notifications and Send (reference 18.2, 18.3)."""

from unittest.mock import AsyncMock

import aiocoap
import cbor2
import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import wait_all_tasks_blocked

from broker.device_management.sessions import ObservationSettings, Reading, Readings
from broker.devices.registry import Device
from broker.facts import ManagementConfigured
from broker.services import Services
from broker.trace.refusals import LINES_OF_ONE
from protocols.coap.lwm2m.datagrams import Lwm2mEndpoint
from protocols.coap.lwm2m.formats.content import ANSWER_BYTES
from protocols.coap.lwm2m.server import Lwm2mServer
from protocols.coap.session import OVERHEAD_AT_ONCE
from storage.keys import DeviceTypeKey
from storage.sql import StoreError
from tests.factories import KITCHEN, NOW_MS, World
from tests.protocols.coap.conftest import Time
from tests.protocols.coap.lwm2m.conftest import Management
from tests.protocols.coap.lwm2m.device import (
    SENML_CBOR,
    SENML_JSON,
    TEXT,
    TLV,
    MemoryTransport,
    ScriptedDevice,
    content,
    tlv,
)
from tests.protocols.coap.lwm2m.test_formats import EXAMPLE, EXAMPLE_TLV
from tests.rows import each_row

FIRMWARE = tlv((3, 3, b"\0"), (3, 5, b"\0"))
SEQUENCE = [
    "PUT /3/0?pmin=10&pmax=60",
    "PUT /5/0?pmin=10&pmax=60",
    "GET /3/0 observe",
    "GET /5/0 observe",
    "GET /3/0",
    "GET /5/0",
]


@pytest.fixture
def device(device: ScriptedDevice) -> ScriptedDevice:
    device.replies["GET /3/0"] = content(TLV, EXAMPLE_TLV)
    device.replies["GET /5/0"] = content(TLV, FIRMWARE)
    return device


class TestSequence:
    async def test_writes_attributes_observes_and_reads(self, device: ScriptedDevice, management: Management) -> None:
        """int-301: Write-Attributes, Observe, then Read of every instance; tasks begin after it."""
        await device.register()
        await management.session()
        assert device.requests == SEQUENCE
        assert management.values == {**EXAMPLE, (5, 0, 3): 0, (5, 0, 5): 0}
        assert management.heard_of == {KITCHEN}
        assert {reading.ts for reading in management.readings} == {None}  # of their arrival

    async def test_discovers_the_instances_of_an_object_that_is_listed_without(
        self, device: ScriptedDevice, management: Management
    ) -> None:
        device.replies["GET /3303"] = content(40, b"</3303/1>,</3303/2>,</3303/2/5700>")
        for instance in (1, 2):
            device.replies[f"GET /3303/{instance}"] = content(SENML_JSON, b'[{"n":"5700","v":21.5}]')
        await device.register(payload=b"</3303>,</3304>,</1/0>,</0/0>")
        await management.session()
        assert device.requests == ["GET /3303", "GET /3304", "GET /3303/1", "GET /3303/2", "GET /3304/0"]
        assert management.values == {(3303, 1, 5700): 21.5, (3303, 2, 5700): 21.5}

    async def test_asks_nothing_while_properties_are_disabled(
        self, device: ScriptedDevice, management: Management
    ) -> None:
        management.observation = ObservationSettings(is_enabled=False, pmin=10, pmax=60)
        await device.register()
        await management.session()
        assert device.requests == []

    async def test_is_carried_out_again_when_the_type_is_configured(
        self, device: ScriptedDevice, management: Management, services: Services, world: World
    ) -> None:
        """New `pmin` and `pmax` are written to registered devices at once (reference 15.1)."""
        management.observation = ObservationSettings(is_enabled=False, pmin=10, pmax=60)
        await device.register()
        await management.session()
        management.observation = ObservationSettings(is_enabled=True, pmin=10, pmax=60)
        services.core.router.publish(ManagementConfigured(DeviceTypeKey(world.light_type + 1)))
        await wait_all_tasks_blocked()
        assert device.requests == []
        services.core.router.publish(ManagementConfigured(world.light_type))
        await management.session(2)
        assert device.requests == SEQUENCE

    async def test_is_carried_out_again_when_the_type_is_configured_meanwhile(
        self, device: ScriptedDevice, management: Management, services: Services, world: World
    ) -> None:
        """The flag that another task sets while the device answers is not overwritten (issue 43, D.16)."""

        def configure(request: aiocoap.Message) -> aiocoap.Message:
            device.replies["GET /5/0"] = content(TLV, FIRMWARE)
            management.observation = ObservationSettings(is_enabled=True, pmin=20, pmax=60)
            services.core.router.publish(ManagementConfigured(world.light_type))
            return device.answered(request, content(TLV, FIRMWARE))

        device.replies["GET /5/0"] = configure
        await device.register()
        await management.session(2)
        assert "PUT /3/0?pmin=20&pmax=60" in device.requests

    async def test_goes_on_after_a_refusal_and_after_nonsense(
        self, device: ScriptedDevice, management: Management, server: Lwm2mServer
    ) -> None:
        device.replies["PUT /3/0"] = aiocoap.METHOD_NOT_ALLOWED, None, b""
        device.replies["GET /3/0 observe"] = aiocoap.INTERNAL_SERVER_ERROR, None, b""
        device.replies["GET /3/0"] = content(TEXT, b"half")
        await device.register()
        await management.session()
        assert device.requests == SEQUENCE
        assert management.values == {(5, 0, 3): 0, (5, 0, 5): 0}
        assert server.statistics().unreadable == 1

    async def test_stops_at_a_communication_failure_until_the_next_update(
        self, device: ScriptedDevice, management: Management, lwm2m: Lwm2mEndpoint, time: Time, server: Lwm2mServer
    ) -> None:
        device.replies["GET /5/0 observe"] = lambda _: None
        await device.register()
        await device.wait_asked("GET /5/0 observe")
        for _ in range(6):
            time.now += 33
            lwm2m.tick(time.now)
        await wait_all_tasks_blocked()
        assert management.sessions == []
        assert server.statistics().communication_failures == 1
        del device.replies["GET /5/0 observe"]
        device.requests.clear()
        await device.update()
        await management.session()
        assert device.requests == SEQUENCE

    async def test_begins_anew_for_a_device_that_came_back_while_a_request_was_lost(
        self, device: ScriptedDevice, management: Management, lwm2m: Lwm2mEndpoint, time: Time
    ) -> None:
        device.replies["GET /5/0 observe"] = lambda _: None
        await device.register()
        await device.wait_asked("GET /5/0 observe")
        await device.update()
        del device.replies["GET /5/0 observe"]
        device.requests.clear()
        transport = device.transport
        assert isinstance(transport, MemoryTransport)
        transport.is_deaf = True  # the retransmissions are lost, too
        for _ in range(6):
            time.now += 33
            lwm2m.tick(time.now)
        transport.is_deaf = False
        await management.session()
        assert device.requests == SEQUENCE

    async def test_is_not_repeated_by_an_update(self, device: ScriptedDevice, management: Management) -> None:
        await device.register()
        await management.session()
        await device.update()
        await management.session(2)
        assert device.requests == SEQUENCE

    async def test_is_repeated_when_the_objects_have_changed(
        self, device: ScriptedDevice, management: Management
    ) -> None:
        await device.register()
        await management.session()
        device.requests.clear()
        await device.update(payload=b"</3/0>")
        await management.session(2)
        assert device.requests == [SEQUENCE[0], SEQUENCE[2], SEQUENCE[4]]


class TestNotifications:
    @pytest.fixture
    async def observed(self, device: ScriptedDevice, management: Management) -> ScriptedDevice:
        await device.register()
        await management.session()
        management.values.clear()
        return device

    @pytest.mark.parametrize("type_", [aiocoap.CON, aiocoap.NON])
    async def test_values_come(self, observed: ScriptedDevice, management: Management, type_: aiocoap.Type) -> None:
        """int-301; a confirmable one is acknowledged."""
        message_id = await observed.notify("/3/0", 2, content(TLV, tlv((3, 9, b"\x2a"))), type_=type_)
        await management.wait(lambda: management.values)
        assert management.values == {(3, 0, 9): 42}
        await wait_all_tasks_blocked()
        assert observed.acknowledged == ([message_id] if type_ == aiocoap.CON else [])
        assert observed.resets == []

    async def test_an_older_one_is_dropped(self, observed: ScriptedDevice, management: Management) -> None:
        await observed.notify("/3/0", 9, content(TLV, tlv((3, 9, b"\x2a"))))
        await management.wait(lambda: management.values)
        await observed.notify("/3/0", 8, content(TLV, tlv((3, 9, b"\x01"))))
        await wait_all_tasks_blocked()
        assert management.values == {(3, 0, 9): 42}
        assert len(observed.acknowledged) == 2

    async def test_a_device_that_never_counts_on_is_understood(
        self, observed: ScriptedDevice, management: Management
    ) -> None:
        for level in (40, 41):
            await observed.notify("/3/0", 5, content(TLV, tlv((3, 9, bytes((level,))))))
            await wait_all_tasks_blocked()
            assert management.values == {(3, 0, 9): level}

    async def test_the_option_may_be_missing(self, observed: ScriptedDevice, management: Management) -> None:
        await observed.notify("/3/0", None, content(TLV, tlv((3, 9, b"\x2a"))))
        await management.wait(lambda: management.values == {(3, 0, 9): 42})

    async def test_in_blocks_is_read_anew(self, observed: ScriptedDevice, management: Management) -> None:
        observed.requests.clear()
        await observed.notify("/3/0", 2, content(TLV, EXAMPLE_TLV[:32]), block2=(0, True, 1))
        await management.wait(lambda: management.values == EXAMPLE)
        assert observed.requests == ["GET /3/0"]

    async def test_that_cannot_be_read_is_counted(self, observed: ScriptedDevice, server: Lwm2mServer) -> None:
        with capture_logs() as logs:
            for number in range(2, 32):
                await observed.notify("/3/0", number, content(TLV, b"\xe8\x00"))
            await wait_all_tasks_blocked()
        assert server.statistics().unreadable == 30
        assert len(observed.acknowledged) == 30
        # A few lines, however many there are.
        assert {log["event"] for log in logs} == {"lwm2m_unreadable"}
        assert len(logs) == LINES_OF_ONE
        assert logs[0]["reason"] == "A notification ends within the head of a TLV entry."

    async def test_with_an_error_ends_the_observation(self, observed: ScriptedDevice, management: Management) -> None:
        """RFC 7641, 3.2; what nobody observes gets a Reset."""
        await observed.notify("/3/0", None, (aiocoap.NOT_FOUND, None, b""))
        message_id = await observed.notify("/3/0", 3, content(TLV, tlv((3, 9, b"\x2a"))))
        await wait_all_tasks_blocked()
        assert management.values == {}
        assert message_id in observed.resets

    async def test_of_a_former_registration_are_rejected(
        self, observed: ScriptedDevice, management: Management
    ) -> None:
        """int-302."""
        former = dict(observed.observed)
        await observed.register()
        await management.session(2)
        management.values.clear()
        observed.observed = former
        message_id = await observed.notify("/3/0", 2, content(TLV, tlv((3, 9, b"\x2a"))))
        await wait_all_tasks_blocked()
        assert (management.values, observed.resets) == ({}, [message_id])

    async def test_a_flood_of_them_is_stored_together(self, observed: ScriptedDevice, management: Management) -> None:
        """A value that comes while another is stored waits with its time of arrival, in its order."""
        stored: list[list[Reading]] = []
        gate = trio.Event()

        async def slow(_device: object, readings: list[Reading]) -> None:
            stored.append(readings)
            await gate.wait()

        management.receive_values = slow  # type: ignore[method-assign, assignment]
        for number in range(2, 100):
            await observed.notify("/3/0", number, content(TLV, tlv((3, 9, bytes((number,))))), type_=aiocoap.NON)
            if number == 2:
                await wait_all_tasks_blocked()
        gate.set()
        await wait_all_tasks_blocked()
        assert [len(readings) for readings in stored] == [1, 97]
        assert stored[1] == [Reading(NOW_MS, {(3, 0, 9): number}) for number in range(3, 100)]

    async def test_those_that_wait_are_bounded(
        self, observed: ScriptedDevice, management: Management, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("protocols.coap.lwm2m.sequence.MAX_VALUES", 3)
        gate, real = trio.Event(), management.receive_values

        async def slow(device: Device, readings: Readings) -> None:
            await gate.wait()
            await real(device, readings)

        monkeypatch.setattr(management, "receive_values", slow)
        with capture_logs() as logs:
            for number in range(2, 7):
                await observed.notify("/3/0", number, content(TLV, tlv((3, 9, bytes((number,))))))
                if number == 2:
                    await wait_all_tasks_blocked()
        gate.set()
        await wait_all_tasks_blocked()
        assert [dict(reading.values) for reading in management.readings][-4:] == [
            {(3, 0, 9): number} for number in (2, 4, 5, 6)
        ]
        assert [log["event"] for log in logs] == ["lwm2m_notification_dropped"]

    async def test_a_store_that_fails_does_not_keep_back_what_comes_later(
        self, observed: ScriptedDevice, management: Management, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(management, "receive_values", AsyncMock(side_effect=RuntimeError("the store")))
        with capture_logs() as logs:
            await observed.notify("/3/0", 2, content(TLV, tlv((3, 9, b"\1"))))
            await wait_all_tasks_blocked()
        assert [log["event"] for log in logs] == ["lwm2m_sequence_failed"]
        monkeypatch.undo()
        await observed.notify("/3/0", 3, content(TLV, tlv((3, 9, b"\2"))))
        await management.wait(lambda: management.values == {(3, 0, 9): 2})

    async def test_wake_a_device_in_queue_mode(
        self, device: ScriptedDevice, management: Management, time: Time
    ) -> None:
        await device.register(f"ep={KITCHEN}", "b=UQ")
        session = await management.session()
        device.replies["GET /3/0/9"] = content(TEXT, b"80")
        time.now += 100
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.read, (3, 0, 9))
            await wait_all_tasks_blocked()
            assert "GET /3/0/9" not in device.requests
            await device.notify("/3/0", 2, content(TLV, tlv((3, 9, b"\x2a"))))


class TestSend:
    @each_row(
        ("format_", "payload"),
        [
            (SENML_JSON, b'[{"bn":"/3/0/","n":"9","v":42},{"bn":"/","n":"3303/0/5700","v":21.5}]'),
            (SENML_CBOR, cbor2.dumps([{-2: "/3/0/", 0: "9", 2: 42}, {-2: "/", 0: "3303/0/5700", 2: 21.5}])),
        ],
    )
    async def test_values_come(
        self, device: ScriptedDevice, management: Management, format_: int, payload: bytes
    ) -> None:
        """int-306, int-311."""
        await device.register()
        await management.session()
        assert (await device.send(format_, payload)).code == aiocoap.CHANGED
        await management.wait(lambda: management.values.get((3303, 0, 5700)) == 21.5)
        assert management.values[(3, 0, 9)] == 42

    @each_row("is_too_long", [False, True])
    async def test_in_blocks_has_up_to_64_KiB(  # noqa: N802
        self, device: ScriptedDevice, management: Management, is_too_long: bool
    ) -> None:
        """A device that was offline for a day sends all that it has measured, once a minute."""
        await device.register()
        await management.session()
        records = b",".join(b'{"bn":"/3303/0/5700","t":%d,"v":%d}' % (NOW_MS // 1000 - 60 * n, n) for n in range(1440))
        payload = b"[" + records + b" " * (ANSWER_BYTES + is_too_long - 2 - len(records)) + b"]"
        assert len(payload) == ANSWER_BYTES + is_too_long
        answer = await device.ask_in_blocks("dp", payload, format_=SENML_JSON)
        if is_too_long:
            assert answer.code == aiocoap.REQUEST_ENTITY_TOO_LARGE
            return
        assert answer.code == aiocoap.CHANGED
        assert management.values[(3303, 0, 5700)] == 0

    async def test_is_refused_without_a_registration_and_for_what_cannot_be_read(
        self, device: ScriptedDevice, management: Management
    ) -> None:
        assert (await device.send(SENML_JSON, b"[]")).code == aiocoap.NOT_FOUND
        await device.register()
        await management.session()
        with capture_logs() as logs:
            refused = await device.send(SENML_JSON, b"{")
        assert (refused.code, refused.payload) == (aiocoap.BAD_REQUEST, b"Bad Request: The Send is not JSON")
        # Issue 44, 12: the log says why, and of which device.
        assert [(line["event"], line["reason"], line["device"]) for line in logs] == [
            ("lwm2m_refused", "Bad Request: The Send is not JSON", KITCHEN)
        ]
        assert (await device.send(TLV, b"")).code == aiocoap.UNSUPPORTED_CONTENT_FORMAT

    async def test_is_answered_when_it_is_stored(
        self, device: ScriptedDevice, management: Management, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await device.register()
        await management.session()
        monkeypatch.setattr(management, "receive_values", AsyncMock(side_effect=StoreError("the disk is full")))
        refused = await device.send(SENML_JSON, b'[{"n":"/3/0/9","v":1}]')
        assert refused.code == aiocoap.SERVICE_UNAVAILABLE
        monkeypatch.undo()
        assert (await device.send(SENML_JSON, b'[{"n":"/3/0/9","v":2}]')).code == aiocoap.CHANGED
        assert management.values[(3, 0, 9)] == 2


async def test_a_flood_of_a_device_is_dropped(transport: MemoryTransport, lwm2m: Lwm2mEndpoint) -> None:
    """Reference 21.5."""
    for _ in range(300):
        transport.send_bytes(bytes((0x40, 0, 0, 1)))  # pings
    assert lwm2m.statistics().overhead_dropped == 300 - OVERHEAD_AT_ONCE


async def test_requests_of_a_session_are_bounded(transport: MemoryTransport, lwm2m: Lwm2mEndpoint) -> None:
    """Registrations that wait for the store count as unanswered."""
    device = ScriptedDevice(transport, KITCHEN)
    for _ in range(100):
        message = device.message(aiocoap.POST)
        message.opt.uri_path = ("rd",)
        await transport.send(message)
    assert lwm2m.statistics().requests_dropped == 36
