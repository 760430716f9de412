"""LWM2M over TCP and TLS (reference 18.1, 18.3; RFC 8323)."""

from collections.abc import AsyncIterator

import aiocoap
import pytest
import trio
from trio.testing import memory_stream_pair, wait_all_tasks_blocked

from broker.device_management.sessions import SessionLostError, latest
from broker.services import Services
from protocols.coap.lwm2m import streams
from protocols.coap.lwm2m.server import Lwm2mServer
from protocols.coap.lwm2m.streams import serve_connection
from protocols.coap.reliable import ABORT, CSM, PING, RELEASE, encode_coap_frame
from protocols.streams.hub import Hub
from tests.factories import HALL, HALL_TOKEN, KITCHEN, KITCHEN_TOKEN, World
from tests.protocols.coap.conftest import Time
from tests.protocols.coap.lwm2m.conftest import Management
from tests.protocols.coap.lwm2m.device import (
    LWM2M_JSON,
    TEXT,
    TLV,
    ScriptedDevice,
    StreamTransport,
    content,
    tlv,
)
from tests.protocols.coap.lwm2m.test_formats import DEVICE, EXAMPLE, EXAMPLE_TLV, LEVEL, lwm2m_json
from tests.protocols.coap.lwm2m.test_sequence import FIRMWARE, SEQUENCE
from tests.rows import each_row

WITH_TOKEN = f"ep={KITCHEN}", f"token={KITCHEN_TOKEN}", "lt=300", "b=T"


async def _serve(server: Lwm2mServer, stream: trio.abc.Stream) -> None:
    """As the listener does."""
    async with stream, trio.open_nursery() as nursery:
        await serve_connection(server, stream, hub=Hub(nursery, server.life))
        nursery.cancel_scope.cancel()


@pytest.fixture
async def transport(server: Lwm2mServer) -> AsyncIterator[StreamTransport]:
    ours, theirs = memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_serve, server, theirs)
        yield StreamTransport(ours)
        nursery.cancel_scope.cancel()


@pytest.fixture
def device(device: ScriptedDevice) -> ScriptedDevice:
    device.replies["GET /3/0"] = content(TLV, EXAMPLE_TLV)
    device.replies["GET /5/0"] = content(TLV, FIRMWARE)
    return device


class TestRegistration:
    async def test_with_the_token_in_the_query(self, device: ScriptedDevice, management: Management) -> None:
        """int-106: no CSM is needed, and none is sent."""
        assert (await device.register(*WITH_TOKEN)).code == aiocoap.CREATED
        session = await management.session()
        assert device.requests == SEQUENCE
        assert management.values == {**EXAMPLE, (5, 0, 3): 0, (5, 0, 5): 0}
        assert device.signals == []
        assert session.device.id == KITCHEN

    @each_row(
        ("queries", "code"),
        [
            ((f"ep={KITCHEN}",), aiocoap.UNAUTHORIZED),
            ((f"ep={KITCHEN}", "token=" + "0" * 32), aiocoap.UNAUTHORIZED),
            ((f"ep={HALL}", f"token={KITCHEN_TOKEN}"), aiocoap.FORBIDDEN),
            ((f"token={HALL_TOKEN}", f"ep={HALL}", "lt=never"), aiocoap.BAD_REQUEST),
        ],
        ids=["no token", "unknown token", "endpoint of another", "lifetime"],
    )
    async def test_is_refused(self, device: ScriptedDevice, queries: tuple[str, ...], code: aiocoap.Code) -> None:
        assert (await device.register(*queries)).code == code
        assert (await device.register(*WITH_TOKEN)).code == aiocoap.CREATED  # the connection is still open

    async def test_with_a_wrong_token_is_on_the_page_of_the_devices_owner(
        self, device: ScriptedDevice, services: Services
    ) -> None:
        kitchen = await services.devices.registry.find(KITCHEN)
        assert (await device.register(f"ep={KITCHEN}", "token=" + "0" * 32)).code == aiocoap.UNAUTHORIZED
        with trio.fail_after(20):
            while not (found := services.messages.ingest.refused.of(kitchen)):
                await trio.lowlevel.checkpoint()
        assert [(one.status, one.text) for one in found] == [(401, "LWM2M: wrong credentials for this device")]

    async def test_ends_with_the_connection(
        self,
        device: ScriptedDevice,
        transport: StreamTransport,
        management: Management,
        services: Services,
        world: World,
    ) -> None:
        await device.register(*WITH_TOKEN)
        session = await management.session()
        await transport.stream.aclose()
        await management.wait(lambda: management.over == [session])
        with pytest.raises(SessionLostError):
            await session.read(LEVEL)
        assert (await services.devices.presence.of(world.kitchen)).availability == "offline"

    async def test_that_the_device_ends_is_answered_before_the_connection_ends(
        self, device: ScriptedDevice, management: Management
    ) -> None:
        await device.register(*WITH_TOKEN)
        await management.session()
        message = device.message(aiocoap.DELETE)
        message.opt.uri_path = device.location
        assert (await device.ask(message)).code == aiocoap.DELETED
        await device.has_ended.wait()

    async def test_whose_lifetime_has_passed_ends_the_connection(
        self, device: ScriptedDevice, management: Management, server: Lwm2mServer, time: Time
    ) -> None:
        await device.register(*WITH_TOKEN)
        await management.session()
        server.expire(time.now + 310)
        await device.has_ended.wait()

    async def test_again_over_the_same_connection(self, device: ScriptedDevice, management: Management) -> None:
        await device.register(*WITH_TOKEN)
        await management.session()
        await device.register(*WITH_TOKEN)
        session = await management.session(2)
        assert (await device.update()).code == aiocoap.CHANGED
        assert not session.is_over

    async def test_over_a_new_connection_ends_the_old_one(
        self, device: ScriptedDevice, server: Lwm2mServer, management: Management
    ) -> None:
        await device.register(*WITH_TOKEN)
        ours, theirs = memory_stream_pair()
        again = ScriptedDevice(StreamTransport(ours), KITCHEN)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_serve, server, theirs)
            nursery.start_soon(again.run)
            await again.register(*WITH_TOKEN)
            await device.has_ended.wait()
            again.location = device.location
            assert (await again.update()).code == aiocoap.NOT_FOUND
            await management.wait(lambda: management.sessions and not management.sessions[-1].is_over)
            nursery.cancel_scope.cancel()

    async def test_of_another_device_ends_the_one_before(
        self, device: ScriptedDevice, management: Management, server: Lwm2mServer
    ) -> None:
        """A connection is one device: the first one must not stay online for its lifetime."""
        await device.register(*WITH_TOKEN)
        first = await management.session()
        assert (await device.register(f"ep={HALL}", f"token={HALL_TOKEN}")).code == aiocoap.CREATED
        second = await management.session(2)
        assert first.is_over
        assert (second.device.id, server.statistics().registered) == (HALL, 1)

    async def test_must_come_in_time(self, server: Lwm2mServer, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(streams, "REGISTRATION_SECONDS", 0.05)
        ours, theirs = memory_stream_pair()
        with trio.fail_after(5):
            await _serve(server, theirs)
            assert await ours.receive_some() == b""


class TestMessages:
    async def test_of_every_length_are_read(self, device: ScriptedDevice, management: Management) -> None:
        """Length nibbles 13 and 14 (RFC 8323, 3.2)."""
        await device.register(*WITH_TOKEN)
        session = await management.session()
        for size in (1, 200, 300, 60_000):
            text = "x" * size
            device.replies["GET /3/0/0"] = content(TEXT, text.encode())
            assert latest(await session.read((3, 0, 0))) == {(3, 0, 0): text}

    async def test_go_out_one_by_one(
        self, device: ScriptedDevice, transport: StreamTransport, management: Management
    ) -> None:
        """A device that takes one message from each read gets all of them."""
        await device.register(*WITH_TOKEN)
        await management.session()
        assert len(transport.chunks) == 1 + len(SEQUENCE)

    async def test_in_json_under_the_old_number(self, device: ScriptedDevice, management: Management) -> None:
        await device.register(*WITH_TOKEN)
        session = await management.session()
        device.replies["GET /3/0"] = content(1543, lwm2m_json())
        assert latest(await session.read(DEVICE)) == EXAMPLE
        device.replies["GET /3/0"] = content(LWM2M_JSON, lwm2m_json())
        assert latest(await session.read(DEVICE)) == EXAMPLE

    async def test_notifications(self, device: ScriptedDevice, management: Management) -> None:
        await device.register(*WITH_TOKEN)
        await management.session()
        await device.notify("/3/0", 2, content(TLV, tlv((3, 9, b"\x2a"))))
        await management.wait(lambda: management.values[(3, 0, 9)] == 42)

    async def test_that_are_not_answered_in_time(
        self, device: ScriptedDevice, management: Management, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert streams.ANSWER_SECONDS == 30
        monkeypatch.setattr(streams, "ANSWER_SECONDS", 0.05)
        await device.register(*WITH_TOKEN)
        session = await management.session()
        device.replies["GET /3/0/9"] = lambda _: None
        with pytest.raises(SessionLostError), trio.fail_after(5):
            await session.read(LEVEL)

    async def test_of_a_flood_wait_in_the_line_of_overhead(
        self, device: ScriptedDevice, transport: StreamTransport, services: Services
    ) -> None:
        """Reference 21.5."""
        await transport.stream.send_all(encode_coap_frame(PING, b"") * 200)
        with trio.fail_after(5):
            while len(device.signals) < 201:
                await trio.lowlevel.checkpoint()
        assert services.limits.overhead.statistics().delayed >= 100

    async def test_of_a_stranger_are_shorter(self, device: ScriptedDevice, transport: StreamTransport) -> None:
        await transport.stream.send_all(encode_coap_frame(aiocoap.POST, b"", b"", bytes(9000))[:100])
        await device.has_ended.wait()

    async def test_that_cannot_be_read_end_the_connection(
        self, device: ScriptedDevice, transport: StreamTransport
    ) -> None:
        await transport.stream.send_all(b"\x0f\x01")
        await device.has_ended.wait()


class TestSignalling:
    async def test_is_answered_only_to_those_who_use_it(
        self, device: ScriptedDevice, transport: StreamTransport
    ) -> None:
        await transport.stream.send_all(encode_coap_frame(CSM, b""))
        await transport.stream.send_all(encode_coap_frame(PING, b"pi"))
        await wait_all_tasks_blocked()
        assert [(int(one.code), one.token) for one in device.signals] == [(CSM, b""), (0xE3, b"pi")]

    @pytest.mark.parametrize("code", [RELEASE, ABORT])
    async def test_ends_the_connection(self, device: ScriptedDevice, transport: StreamTransport, code: int) -> None:
        await transport.stream.send_all(encode_coap_frame(code, b""))
        await device.has_ended.wait()

    async def test_tells_who_uses_it_of_a_message_that_cannot_be_read(
        self, device: ScriptedDevice, transport: StreamTransport
    ) -> None:
        await transport.stream.send_all(encode_coap_frame(CSM, b"") + b"\x0f\x01")
        await device.has_ended.wait()
        assert [int(one.code) for one in device.signals] == [CSM, ABORT]


async def test_notifications_come_in_their_order_whatever_their_numbers(
    device: ScriptedDevice, management: Management
) -> None:
    """Issue 44, 8 (RFC 8323, 7.1): three of these five were dropped."""
    await device.register(*WITH_TOKEN)
    await management.session()
    management.readings.clear()
    for number in (253, 254, 6, 7, 8, 8, None):
        await device.notify("/3/0", number, content(TLV, tlv((3, 9, bytes(((number or 0) % 100,))))))
        await wait_all_tasks_blocked()
    assert [reading.values[LEVEL] for reading in management.readings] == [53, 54, 6, 7, 8, 8, 0]
