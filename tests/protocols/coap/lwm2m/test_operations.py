"""Requests to devices (README.md names the test cases of the OMA), and clients that are known to answer badly."""

import struct
from typing import Final

import aiocoap
import cbor2
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from broker.device_management.sessions import (
    DeviceRefusedError,
    ManagedSession,
    SessionLostError,
    UnreadableAnswerError,
    latest,
)
from protocols.coap.incoming import EXCHANGE_LIFETIME
from protocols.coap.lwm2m.datagrams import Lwm2mEndpoint
from protocols.coap.lwm2m.device import RegisteredDevice
from tests.factories import KITCHEN
from tests.protocols.coap.conftest import Time
from tests.protocols.coap.lwm2m.conftest import Management
from tests.protocols.coap.lwm2m.device import (
    LWM2M_JSON,
    SENML_CBOR,
    SENML_JSON,
    TEXT,
    TLV,
    Answerer,
    MemoryTransport,
    ScriptedDevice,
    content,
    in_blocks,
    tlv,
)
from tests.protocols.coap.lwm2m.test_formats import DEVICE, EXAMPLE, EXAMPLE_TLV, LEVEL, senml, senml_cbor
from tests.rows import each_row


@pytest.fixture
async def session(device: ScriptedDevice, management: Management) -> ManagedSession:
    """A registered device whose properties are not read."""
    management.observation = management.observation.__class__(is_enabled=False, pmin=0, pmax=0)
    await device.register()
    return await management.session()


class TestRead:
    async def test_a_resource(self, device: ScriptedDevice, session: ManagedSession) -> None:
        """int-201."""
        device.replies["GET /3/0/9"] = content(TEXT, b"80")
        assert latest(await session.read(LEVEL)) == {LEVEL: 80}
        assert device.requests == ["GET /3/0/9"]

    async def test_an_object_instance(self, device: ScriptedDevice, session: ManagedSession) -> None:
        """int-203."""
        device.replies["GET /3/0"] = content(TLV, EXAMPLE_TLV)
        assert latest(await session.read(DEVICE)) == EXAMPLE

    async def test_below_the_root_path_of_the_device(self, device: ScriptedDevice, management: Management) -> None:
        device.replies["GET /lwm2m/3/0/9"] = content(TEXT, b"80")
        await device.register(payload=b'</lwm2m>;rt="oma.lwm2m",</lwm2m/3/0>')
        session = await management.session()
        assert latest(await session.read(LEVEL)) == {LEVEL: 80}

    async def test_in_blocks(self, device: ScriptedDevice, session: ManagedSession) -> None:
        """RFC 7959."""
        device.replies["GET /3/0"] = in_blocks(device, TLV, EXAMPLE_TLV, 1)
        assert latest(await session.read(DEVICE)) == EXAMPLE
        assert device.requests[-1] == f"GET /3/0 block {(len(EXAMPLE_TLV) - 1) // 32}"

    async def test_a_separate_response(self, device: ScriptedDevice, session: ManagedSession) -> None:
        def later(request: aiocoap.Message) -> aiocoap.Message:
            message = device.reply(request, *content(TEXT, b"80"))
            message.mtype, message.mid = aiocoap.CON, 7
            return message

        device.replies["GET /3/0/9"] = later
        assert latest(await session.read(LEVEL)) == {LEVEL: 80}
        await wait_all_tasks_blocked()
        assert device.acknowledged == [7]

    @each_row(("code", "shown"), [(aiocoap.NOT_FOUND, "4.04"), (aiocoap.METHOD_NOT_ALLOWED, "4.05"), (160, "5.00")])
    async def test_that_is_refused(
        self, device: ScriptedDevice, session: ManagedSession, code: int, shown: str
    ) -> None:
        device.replies["GET /3/0/9"] = aiocoap.Code(code), None, b""
        with pytest.raises(DeviceRefusedError) as raised:
            await session.read(LEVEL)
        assert raised.value.code == shown


class TestWriteAndExecute:
    async def test_write_is_text(self, device: ScriptedDevice, session: ManagedSession) -> None:
        """int-205, int-227."""
        written: list[tuple[int | None, bytes]] = []

        def keep(request: aiocoap.Message) -> aiocoap.Message:
            written.append((request.opt.content_format, request.payload))
            return device.reply(request, aiocoap.CHANGED, None, b"")

        device.replies["PUT /3/0/14"] = keep
        await session.write((3, 0, 14), "+01:00")
        assert written == [(TEXT, b"+01:00")]

    async def test_execute_has_no_body(self, device: ScriptedDevice, session: ManagedSession) -> None:
        """int-241."""
        bodies: list[bytes] = []

        def keep(request: aiocoap.Message) -> aiocoap.Message:
            bodies.append(request.payload)
            return device.reply(request, aiocoap.CHANGED, None, b"")

        device.replies["POST /3/0/4"] = keep
        await session.execute((3, 0, 4))
        assert bodies == [b""]

    async def test_that_are_refused(self, device: ScriptedDevice, session: ManagedSession) -> None:
        """int-256."""
        device.replies["PUT /3/0/0"] = device.replies["POST /3/0/0"] = aiocoap.METHOD_NOT_ALLOWED, None, b""
        with pytest.raises(DeviceRefusedError):
            await session.write((3, 0, 0), "x")
        with pytest.raises(DeviceRefusedError):
            await session.execute((3, 0, 0))

    async def test_a_value_that_is_too_long_is_not_sent(self, device: ScriptedDevice, session: ManagedSession) -> None:
        with pytest.raises(ValueError, match="1024 bytes"):
            await session.write((3, 0, 14), "x" * 2000)
        assert device.requests == []

    async def test_an_answer_that_is_no_answer_to_a_write(
        self, device: ScriptedDevice, session: ManagedSession
    ) -> None:
        device.replies["PUT /3/0/14"] = content(TEXT, b"+01:00")
        with pytest.raises(UnreadableAnswerError) as raised:
            await session.write((3, 0, 14), "+01:00")
        assert raised.value.reason == "The answer to Write /3/0/14 is 2.05 instead of 2.04."


class TestDiscover:
    async def test_names_what_is_below(self, device: ScriptedDevice, session: ManagedSession) -> None:
        """int-260."""
        assert isinstance(session, RegisteredDevice)
        device.replies["GET /3"] = content(40, b"</3>,</3/0>;pmin=10,</3/0/0>,</3/0/9>")
        assert await session.discover((3,)) == [(3,), (3, 0), (3, 0, 0), (3, 0, 9)]

    async def test_an_answer_of_another_format(self, device: ScriptedDevice, session: ManagedSession) -> None:
        assert isinstance(session, RegisteredDevice)
        device.replies["GET /3"] = content(TLV, EXAMPLE_TLV)
        with pytest.raises(UnreadableAnswerError, match="not in link format"):
            await session.discover((3,))


class TestOneAtATime:
    async def test_requests_wait_for_the_answer_to_the_former(
        self, device: ScriptedDevice, session: ManagedSession
    ) -> None:
        held: list[aiocoap.Message] = []

        def hold(request: aiocoap.Message) -> None:
            held.append(request)

        device.replies["GET /3/0/9"] = hold
        device.replies["GET /3/0/0"] = content(TEXT, b"Example")
        async with trio.open_nursery() as nursery:
            for path in ((3, 0, 9), (3, 0, 0)):
                nursery.start_soon(session.read, path)
                await wait_all_tasks_blocked()
            assert device.requests == ["GET /3/0/9"]
            await device.transport.send(device.reply(held[0], *content(TEXT, b"80")))
        assert device.requests == ["GET /3/0/9", "GET /3/0/0"]


class TestBlocksOfTwoBodies:
    """Issue 44, 11."""

    def _observed_in_cbor(self, device: ScriptedDevice) -> Answerer:
        """An observation is answered in SenML CBOR, and the plain requests for its further blocks in TLV."""
        observed = in_blocks(device, SENML_CBOR, senml_cbor(senml()), 2)
        plain = in_blocks(device, TLV, EXAMPLE_TLV, 2)

        def answer(request: aiocoap.Message) -> aiocoap.Message:
            if request.opt.observe is None:
                return plain(request)
            found = observed(request)
            assert found is not None
            found.opt.observe = 1
            device.observed["/3/0"] = request.token
            return found

        return answer

    async def test_an_observation_is_read_again_plainly(
        self, device: ScriptedDevice, session: ManagedSession, management: Management
    ) -> None:
        device.replies["GET /3/0"] = self._observed_in_cbor(device)
        assert isinstance(session, RegisteredDevice)
        assert latest(await session.observe(DEVICE)) == EXAMPLE
        assert device.requests[:3] == ["GET /3/0 observe", "GET /3/0 block 1", "GET /3/0"]
        await device.notify("/3/0", 2, content(TLV, tlv((3, 9, b"\x2a"))))  # the observation goes on
        await management.wait(lambda: management.values == {LEVEL: 42})

    async def test_a_read_says_so(self, device: ScriptedDevice, session: ManagedSession) -> None:
        formats = iter((SENML_CBOR, TLV))

        def answer(request: aiocoap.Message) -> aiocoap.Message:
            return in_blocks(device, next(formats), EXAMPLE_TLV, 2)(request)

        device.replies["GET /3/0"] = answer
        with pytest.raises(UnreadableAnswerError) as raised:
            await session.read(DEVICE)
        assert raised.value.reason == "The answer to Read /3/0 has blocks of different content-formats."

    async def test_further_blocks_are_asked_for_with_the_same_options(
        self, device: ScriptedDevice, session: ManagedSession
    ) -> None:
        accepts = []
        links = b",".join(b"</3303/%d>" % number for number in range(20))

        def answer(request: aiocoap.Message) -> aiocoap.Message:
            accepts.append(request.opt.accept)
            return in_blocks(device, 40, links, 2)(request)

        device.replies["GET /3303"] = answer
        assert isinstance(session, RegisteredDevice)
        assert len(await session.discover((3303,))) == 20
        assert set(accepts) == {40}


class TestUnknownTypes:
    """Issue 44, 5: where no model says what a resource holds, a format is asked for that does."""

    VALUES: Final = tlv((3, 1, b"0"), (3, 2, b"M"))

    def _typed(self, device: ScriptedDevice, *formats: int) -> Answerer:
        """Answers in TLV, and in one of these formats when it is asked for; others are refused."""
        payloads = {SENML_JSON: b'[{"bn":"/4242/0/","n":"1","v":48},{"n":"2","vs":"M"}]'}
        payloads[SENML_CBOR] = cbor2.dumps([{-2: "/4242/0/", 0: "1", 2: 48}, {0: "2", 3: "M"}])
        payloads[LWM2M_JSON] = b'{"bn":"/4242/0/","e":[{"n":"1","v":48},{"n":"2","sv":"M"}]}'

        def answer(request: aiocoap.Message) -> aiocoap.Message:
            accept = request.opt.accept
            self.accepts.append(accept)
            if accept is None:
                return device.answered(request, content(TLV, self.VALUES))
            if accept not in formats:
                return device.answered(request, (aiocoap.NOT_ACCEPTABLE, None, b""))
            return device.answered(request, content(accept, payloads[accept]))

        self.accepts: list[int | None] = []
        return answer

    @pytest.mark.parametrize(
        ("version", "formats", "asked"),
        [
            ("1.1", (SENML_CBOR, SENML_JSON), [SENML_CBOR]),
            ("1.1", (SENML_JSON,), [SENML_CBOR, SENML_JSON]),
            ("1.0", (LWM2M_JSON,), [LWM2M_JSON]),
            ("1.0", (SENML_CBOR,), [LWM2M_JSON, SENML_JSON, SENML_CBOR]),
        ],
    )
    async def test_are_asked_for(
        self,
        device: ScriptedDevice,
        management: Management,
        version: str,
        formats: tuple[int, ...],
        asked: list[int],
    ) -> None:
        device.replies["GET /4242/0"] = self._typed(device, *formats)
        await device.register(f"ep={KITCHEN}", f"lwm2m={version}")
        session = await management.session()
        for _ in range(2):
            assert latest(await session.read((4242, 0))) == {(4242, 0, 1): 48, (4242, 0, 2): "M"}
        # A refused request is not repeated.
        assert self.accepts == [None, *asked, asked[-1]]

    async def test_stay_bytes_of_a_device_that_has_nothing_else(
        self, device: ScriptedDevice, session: ManagedSession
    ) -> None:
        device.replies["GET /4242/0"] = self._typed(device)
        for _ in range(2):
            assert latest(await session.read((4242, 0))) == {(4242, 0, 1): b"0", (4242, 0, 2): b"M"}
        assert self.accepts == [None, LWM2M_JSON, SENML_JSON, SENML_CBOR, None]

    async def test_of_a_device_that_ignores_what_is_asked(
        self, device: ScriptedDevice, session: ManagedSession
    ) -> None:
        device.replies["GET /4242/0"] = content(TLV, self.VALUES)
        assert latest(await session.read((4242, 0))) == {(4242, 0, 1): b"0", (4242, 0, 2): b"M"}

    async def test_of_the_registry_need_no_second_request(
        self, device: ScriptedDevice, session: ManagedSession
    ) -> None:
        device.replies["GET /3303/0"] = content(TLV, tlv((3, 5700, struct.pack(">f", 21.5))))
        device.replies["GET /3/0"] = content(TLV, tlv((3, 9, b"\x2a"), (3, 999, b"x")))
        device.requests.clear()
        assert latest(await session.read((3303, 0))) == {(3303, 0, 5700): 21.5}
        assert latest(await session.read(DEVICE))[LEVEL] == 42
        assert device.requests == ["GET /3303/0", "GET /3/0"]


class TestCommunicationFailure:
    async def test_after_the_retransmissions(
        self, device: ScriptedDevice, session: ManagedSession, lwm2m: Lwm2mEndpoint, time: Time
    ) -> None:
        transport = device.transport
        assert isinstance(transport, MemoryTransport)
        transport.is_deaf = True
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_lost, session)
            await wait_all_tasks_blocked()
            for _ in range(6):
                time.now += 33
                lwm2m.tick(time.now)
        assert lwm2m.statistics().retransmissions == 4
        assert not session.is_over

    async def test_after_a_promise_that_is_not_kept(
        self, device: ScriptedDevice, session: ManagedSession, lwm2m: Lwm2mEndpoint, time: Time
    ) -> None:
        """The device acknowledges a request and never answers it."""

        def acknowledge(request: aiocoap.Message) -> aiocoap.Message:
            message = aiocoap.Message(code=aiocoap.EMPTY)
            message.mtype, message.mid, message.token = aiocoap.ACK, request.mid, b""
            return message

        device.replies["GET /3/0/9"] = acknowledge
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_lost, session)
            await wait_all_tasks_blocked()
            time.now += EXCHANGE_LIFETIME
            lwm2m.tick(time.now)

    async def test_after_a_reset(self, device: ScriptedDevice, session: ManagedSession) -> None:
        def reset(request: aiocoap.Message) -> aiocoap.Message:
            message = aiocoap.Message(code=aiocoap.EMPTY)
            message.mtype, message.mid, message.token = aiocoap.RST, request.mid, b""
            return message

        device.replies["GET /3/0/9"] = reset
        await _lost(session)

    async def test_when_the_registration_ends_meanwhile(
        self, device: ScriptedDevice, session: ManagedSession, management: Management
    ) -> None:
        device.replies["GET /3/0/9"] = lambda _: None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_lost, session)
            await device.wait_asked("GET /3/0/9")
            await device.register()
        await _lost(session)
        device.replies["GET /3/0/9"] = content(TEXT, b"80")
        with trio.fail_after(5):  # it does not wait for the retransmissions of the former request
            assert latest(await (await management.session(2)).read(LEVEL)) == {LEVEL: 80}

    async def test_when_the_connection_ends_meanwhile(
        self, device: ScriptedDevice, session: ManagedSession, lwm2m: Lwm2mEndpoint
    ) -> None:
        device.replies["GET /3/0/9"] = lambda _: None
        transport = device.transport
        assert isinstance(transport, MemoryTransport)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_lost, session)
            await device.wait_asked("GET /3/0/9")
            lwm2m.close(transport.session)
        assert not session.is_over  # the device can come back over another connection
        await _lost(session)

    async def test_a_cancelled_request_leaves_the_device_free(
        self, device: ScriptedDevice, session: ManagedSession
    ) -> None:
        device.replies["GET /3/0/9"] = lambda _: None
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(session.read, LEVEL)
                await device.wait_asked("GET /3/0/9")
                scope.cancel()
        device.replies["GET /3/0/9"] = content(TEXT, b"80")
        assert latest(await session.read(LEVEL)) == {LEVEL: 80}


async def _lost(session: ManagedSession) -> None:
    with pytest.raises(SessionLostError):
        await session.read(LEVEL)


class TestQueueMode:
    @pytest.fixture(params=[("b=UQ",), ("b=U", "Q")], ids=["1.0", "1.1"])
    async def sleeper(
        self, device: ScriptedDevice, management: Management, request: pytest.FixtureRequest
    ) -> ManagedSession:
        device.replies["GET /3/0/9"] = content(TEXT, b"80")
        await device.register(f"ep={KITCHEN}", "lt=3600", *request.param)
        return await management.session()

    async def test_a_request_waits_for_the_next_update(
        self, device: ScriptedDevice, sleeper: ManagedSession, time: Time
    ) -> None:
        device.requests.clear()
        time.now += 94
        found: list[object] = []

        async def read() -> None:
            found.append(latest(await sleeper.read(LEVEL)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await wait_all_tasks_blocked()
            assert device.requests == []
            await device.update()
        assert found == [{LEVEL: 80}]

    async def test_a_request_is_sent_at_once_while_the_device_is_awake(
        self, sleeper: ManagedSession, time: Time
    ) -> None:
        time.now += 90
        assert latest(await sleeper.read(LEVEL)) == {LEVEL: 80}

    async def test_a_device_that_fell_asleep_early_is_asked_at_its_next_update(
        self, device: ScriptedDevice, sleeper: ManagedSession, lwm2m: Lwm2mEndpoint, time: Time
    ) -> None:
        transport = device.transport
        assert isinstance(transport, MemoryTransport)
        transport.is_deaf = True
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_lost, sleeper)
            await wait_all_tasks_blocked()
            for _ in range(6):
                time.now += 16
                lwm2m.tick(time.now)
        transport.is_deaf = False
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sleeper.read, LEVEL)
            await wait_all_tasks_blocked()
            await device.update()

    async def test_a_request_that_waits_ends_with_the_registration(
        self, device: ScriptedDevice, sleeper: ManagedSession, time: Time
    ) -> None:
        time.now += 94
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_lost, sleeper)
            await wait_all_tasks_blocked()
            await device.register()


class TestKnownBadClients:
    """Each gets a named reason at once, and the next request is answered."""

    async def _reason(self, device: ScriptedDevice, session: ManagedSession) -> str:
        with pytest.raises(UnreadableAnswerError) as raised, trio.fail_after(5):
            await session.read(DEVICE)
        device.replies["GET /3/0/9"] = content(TEXT, b"80")
        assert latest(await session.read(LEVEL)) == {LEVEL: 80}
        return raised.value.reason

    async def test_senml_cbor_that_is_invalid_for_several_instances(
        self, device: ScriptedDevice, session: ManagedSession
    ) -> None:
        right = senml_cbor(senml())
        device.replies["GET /3/0"] = content(SENML_CBOR, b"\x8c" + right[1:])
        reason = await self._reason(device, session)
        assert reason.startswith("The answer to Read /3/0 is not SenML CBOR")

    async def test_a_wrong_block_number(self, device: ScriptedDevice, session: ManagedSession) -> None:
        right = in_blocks(device, TLV, EXAMPLE_TLV, 2)

        def wrong(request: aiocoap.Message) -> aiocoap.Message | None:
            answer = right(request)
            if answer is not None and answer.opt.block2.block_number == 1:
                answer.opt.block2 = (2, True, 2)
            return answer

        device.replies["GET /3/0"] = wrong
        reason = await self._reason(device, session)
        assert reason == "The answer to Read /3/0 has block 2, and block 1 was asked for."

    async def test_a_first_block_that_is_not_the_first(self, device: ScriptedDevice, session: ManagedSession) -> None:
        def wrong(request: aiocoap.Message) -> aiocoap.Message:
            answer = device.reply(request, *content(TLV, bytes(64)))
            answer.opt.block2 = (3, True, 2)
            return answer

        device.replies["GET /3/0"] = wrong
        assert "has block 3, and block 0 was asked for" in await self._reason(device, session)

    async def test_blocks_without_end(self, device: ScriptedDevice, session: ManagedSession) -> None:
        def more(request: aiocoap.Message) -> aiocoap.Message:
            number = request.opt.block2.block_number if request.opt.block2 else 0
            answer = device.reply(request, *content(TLV, bytes(1024)))
            answer.opt.block2 = (number, True, 6)
            return answer

        device.replies["GET /3/0"] = more
        assert "has more than 65536 bytes" in await self._reason(device, session)

    async def test_the_wrong_format(self, device: ScriptedDevice, session: ManagedSession) -> None:
        device.replies["GET /3/0"] = content(SENML_JSON, EXAMPLE_TLV)
        assert await self._reason(device, session) == "The answer to Read /3/0 is not JSON."

    async def test_a_format_that_nobody_knows(self, device: ScriptedDevice, session: ManagedSession) -> None:
        device.replies["GET /3/0"] = content(65_000, cbor2.dumps({}))
        assert "has content-format 65000, which is not one for values" in await self._reason(device, session)

    async def test_half_of_an_answer(self, device: ScriptedDevice, session: ManagedSession) -> None:
        device.replies["GET /3/0"] = content(TLV, EXAMPLE_TLV[:40])
        assert "has a TLV entry of" in await self._reason(device, session)

    async def test_success_without_content(self, device: ScriptedDevice, session: ManagedSession) -> None:
        device.replies["GET /3/0"] = aiocoap.CHANGED, None, b""
        assert await self._reason(device, session) == "The answer to Read /3/0 is 2.04 instead of 2.05."
