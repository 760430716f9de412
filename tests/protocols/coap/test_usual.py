"""The POST that a device sends again and again: it is read in a shorter way, and nothing else is different."""

import json
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from broker.accounts.tokens import Caller
from broker.services import Services
from config.limits import COAP_BODY_BYTES
from config.settings import Limits, Settings
from protocols.coap.endpoint import CoapEndpoint
from protocols.coap.messages import CBOR, CON, NON, CoapMessage, Code, MalformedMessage, Option, decode_message, uint
from protocols.coap.requests import read_request
from protocols.coap.usual import MAX_USUAL_BYTES, USUAL_BYTES, UsualPost
from tests.factories import HALL, HALL_TOKEN, KITCHEN, KITCHEN_TOKEN, World
from tests.protocols.coap.peers import Peer, disable_kitchen, encode_message, error, revoke_kitchen_token
from tests.rows import each_row

STATE = {"data": {"state": True}}
JSON_OPTION = (int(Option.CONTENT_FORMAT), uint(50))
CBOR_OPTION = (int(Option.CONTENT_FORMAT), uint(CBOR))
PATH = tuple((int(Option.URI_PATH), segment) for segment in (b"v1.1", b"messages", KITCHEN_TOKEN.encode()))


async def _posted(peer: Peer, token: str = KITCHEN_TOKEN, body: object = None, **options: Any) -> CoapMessage:
    peer.post(token, STATE if body is None else body, options.get("options", [JSON_OPTION]))
    await wait_all_tasks_blocked()
    return peer.take()


@pytest.fixture
async def usual(peer: Peer) -> Peer:
    """A device that has opened a session, and then sent the same options twice."""
    for _ in range(3):
        assert (await _posted(peer)).code == Code.CREATED
    assert peer.session().usual is not None
    return peer


def _usual_post(options: tuple[tuple[int, bytes], ...] = (*PATH, JSON_OPTION)) -> UsualPost:
    message = CoapMessage(CON, int(Code.POST), 1, b"", options, b"x")
    encoded = encode_message(message)[4:-1]
    known: Any = (None, None)
    return UsualPost(encoded, options, read_request(message), known, None)


class TestReading:
    @given(
        type_=st.sampled_from((CON, NON)),
        code=st.sampled_from((Code.GET, Code.POST, Code.CREATED)),
        message_id=st.integers(0, 0xFFFF),
        token=st.binary(max_size=8),
        options=st.sampled_from((PATH, (*PATH, JSON_OPTION), (*PATH, CBOR_OPTION))),
        payload=st.binary(max_size=40) | st.just(b"{" * 5000),
        cut=st.integers(0, 60) | st.just(10_000),
        spoilt=st.none() | st.tuples(st.integers(0, 70), st.integers(0, 255)),
    )
    def test_agrees_with_the_decoder(
        self,
        type_: int,
        code: Code,
        message_id: int,
        token: bytes,
        options: tuple[tuple[int, bytes], ...],
        payload: bytes,
        cut: int,
        spoilt: tuple[int, int] | None,
    ) -> None:
        datagram = bytearray(encode_message(CoapMessage(type_, code, message_id, token, options, payload))[:cut])
        if spoilt is not None and spoilt[0] < len(datagram):
            datagram[spoilt[0]] = spoilt[1]
        read = _usual_post().read(bytes(datagram))
        try:
            decoded = decode_message(bytes(datagram))
        except MalformedMessage:
            decoded = None
        assert read is None or read == decoded
        is_usual = (type_, code, options) == (CON, Code.POST, (*PATH, JSON_OPTION))
        if is_usual and payload and len(payload) < 100 and cut == 10_000 and spoilt is None:
            assert read is not None


class TestOutcome:
    async def test_messages_are_stored_and_answered(self, usual: Peer, services: Services) -> None:
        answer = await _posted(usual, body={"data": {"intensity": 7}, "ts": 5})
        assert (answer.code, answer.token) == (Code.CREATED, b"tk")
        found = await services.messages.history.by_mid(json.loads(answer.payload)["data"]["mid"])
        assert found is not None
        assert (found[0].data, found[0].ts, found[0].sdid) == ('{"intensity":7}', 5, KITCHEN)

    async def test_a_duplicate_is_answered_alike_and_stored_once(self, usual: Peer, services: Services) -> None:
        before = services.messages.ingest.statistics().messages
        for _ in range(2):
            usual.request(Code.POST, f"v1.1/messages/{KITCHEN_TOKEN}", b'{"data":{"state":true}}', message_id=77)
        await wait_all_tasks_blocked()
        usual.request(Code.POST, f"v1.1/messages/{KITCHEN_TOKEN}", b'{"data":{"state":true}}', message_id=77)
        first, second = usual.inbox
        assert first == second
        assert services.messages.ingest.statistics().messages == before + 1

    @each_row(
        ("body", "refusal"),
        [
            (b"{", ("4.00", "Bad Request")),
            (b'{"data":{},"sdid":"other"}', None),
            ({"data": {"state": True}, "ts": -1}, None),
            (b'{"data":{"text":"' + b"x" * COAP_BODY_BYTES + b'"}}', None),
        ],
    )
    async def test_refusals_are_those_of_a_first_request(
        self, usual: Peer, endpoint: CoapEndpoint, body: object, refusal: tuple[str, str] | None
    ) -> None:
        first = Peer(endpoint, ("192.0.2.2", len(str(body))))
        theirs, ours = error(await _posted(first, body=body)), error(await _posted(usual, body=body))
        assert ours == theirs
        assert refusal in {None, ours}

    async def test_cbor_is_answered_in_cbor(self, peer: Peer) -> None:
        for _ in range(3):
            answer = await _posted(peer, body=cbor2.dumps(STATE), options=[CBOR_OPTION])
            assert set(cbor2.loads(answer.payload)["data"]) == {"mid"}
        assert peer.session().usual is not None


class TestLimit:
    @pytest.fixture
    def settings(self, settings: Settings) -> Settings:
        return Settings(state_dir=settings.state_dir, limits=Limits(coap_device="4/100"))

    async def test_calls_are_counted(self, usual: Peer) -> None:
        assert (await _posted(usual)).code == Code.CREATED
        assert error(await _posted(usual)) == ("4.29", "DEVICE MINUTE rate limit exceeded")


class TestChanges:
    async def test_a_revoked_token_is_refused(self, usual: Peer, services: Services, world: World) -> None:
        await revoke_kitchen_token(services, world)
        assert error(await _posted(usual))[0] == "4.01"

    async def test_a_disabled_device_is_refused(self, usual: Peer, services: Services, world: World) -> None:
        await disable_kitchen(services, world)
        assert error(await _posted(usual))[0] == "4.03"

    async def test_a_token_that_left_the_cache_is_looked_up_and_usual_again(
        self, usual: Peer, services: Services
    ) -> None:
        services.accounts.tokens._known.clear()
        before = _caller(usual)
        for _ in range(2):
            assert (await _posted(usual)).code == Code.CREATED
        assert _caller(usual) is not before

    async def test_other_options_are_read_anew(self, usual: Peer, services: Services) -> None:
        before = usual.session().usual
        answer = await _posted(usual, HALL_TOKEN)
        found = await services.messages.history.by_mid(json.loads(answer.payload)["data"]["mid"])
        assert found is not None
        assert found[0].sdid == HALL
        assert usual.session().usual is before


class TestLearning:
    @each_row(
        "options",
        [
            [(int(Option.BLOCK1), b"\x08"), JSON_OPTION],
            [(int(Option.ECHO), b"12345678"), JSON_OPTION],
            [(int(Option.CONTENT_FORMAT), uint(41))],
            [(int(Option.URI_HOST), b"h" * MAX_USUAL_BYTES), JSON_OPTION],
            [(int(Option.IF_MATCH), b"1"), JSON_OPTION],  # critical and unknown here
        ],
    )
    async def test_only_whole_messages_in_known_formats(self, usual: Peer, options: list[tuple[int, bytes]]) -> None:
        before = usual.session().usual
        for _ in range(3):
            await _posted(usual, options=options)
        assert usual.session().usual is before

    async def test_what_is_held_counts(self, peer: Peer, endpoint: CoapEndpoint) -> None:
        held = []
        for _ in range(4):
            await _posted(peer)
            held.append(endpoint.statistics().bytes_held)
        assert held[2] - held[1] == held[3] - held[2] + USUAL_BYTES


def _caller(peer: Peer) -> Caller | None:
    usual = peer.session().usual
    return None if usual is None else usual.caller
