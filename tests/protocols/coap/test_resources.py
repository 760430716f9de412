"""The resources of reference 17, datagram by datagram."""

import json
import math

import cbor2
import pytest
from structlog.testing import capture_logs
from trio.testing import wait_all_tasks_blocked

from broker.devices.registry import Devices
from broker.envelope import Message as StoredMessage
from broker.messages.ingest import Ingest
from broker.services import Services
from config.limits import JSON_NESTING_MAX
from config.settings import Limits, Settings
from protocols.coap.endpoint import CoapEndpoint
from protocols.coap.messages import ACK, CBOR, CON, JSON, LINK_FORMAT, NON, RST, CoapMessage, Code, Option, uint
from protocols.coap.resources import MAX_UNKNOWN_TOKENS
from protocols.coap.session import SessionRank
from storage.engines.sqlite import SqliteEngine
from storage.sql import StoreError
from tests.builders import ServicesOpener
from tests.factories import ADA_TOKEN, BOBS_TOKEN, HALL, HALL_TOKEN, KITCHEN, KITCHEN_TOKEN, NOW_MS, World, build_world
from tests.fakes import BreakableEngine
from tests.protocols.coap.conftest import Time
from tests.protocols.coap.peers import Peer, disable_kitchen, error, option, revoke_kitchen_token
from tests.rows import each_row

STATE = {"data": {"state": True}}


def _format(number: int) -> tuple[int, bytes]:
    return Option.CONTENT_FORMAT, uint(number)


def _accept(number: int) -> tuple[int, bytes]:
    return Option.ACCEPT, uint(number)


def _nested(levels: int) -> bytes:
    inner = levels - 2  # the body and `data` are levels, too
    return b'{"data":{"x":' + b"[" * inner + b"]" * inner + b"}}"


async def _posted(peer: Peer, token: str, body: object, *options: tuple[int, bytes], type_: int = CON) -> CoapMessage:
    peer.post(token, body, options, type_=type_)
    await wait_all_tasks_blocked()
    return peer.take()


async def _stored(services: Services, mid: str) -> StoredMessage:
    found = await services.messages.history.by_mid(mid)
    assert found is not None
    return found[0]


class TestPost:
    async def test_is_answered_with_the_message_id(self, peer: Peer, services: Services) -> None:
        answer = await _posted(peer, KITCHEN_TOKEN, STATE)
        assert (answer.type, answer.code, answer.token) == (ACK, Code.CREATED, b"tk")
        assert option(answer, Option.CONTENT_FORMAT) == uint(JSON)
        mid = json.loads(answer.payload)["data"]["mid"]
        stored = await _stored(services, mid)
        assert (stored.sdid, stored.data) == (KITCHEN, '{"state":true}')

    @pytest.mark.usefixtures("positions_jump")
    async def test_is_answered_with_the_id_of_the_position_that_the_commit_gives(
        self, peer: Peer, services: Services
    ) -> None:
        for state in (b"true", b"false"):
            answer = await _posted(peer, KITCHEN_TOKEN, b'{"data":{"state":%b}}' % state)
            stored = await _stored(services, json.loads(answer.payload)["data"]["mid"])
            assert stored.data == f'{{"state":{state.decode()}}}'

    @each_row(
        ("value", "message"),
        [
            (math.inf, "is not a Double"),
            (cbor2.CBORTag(4, [999, 1]), "is not a Double"),
            (cbor2.CBORTag(4, [-1, 5]), None),
        ],
    )
    async def test_what_no_number_holds_is_named(
        self, peer: Peer, services: Services, value: object, message: str | None
    ) -> None:
        """Issue 44, 6: as JSON's 1e400 in the trail of the device."""
        body = cbor2.dumps({"data": {"temperature": value, "intensity": 3}})
        answer = await _posted(peer, HALL_TOKEN, body, _format(CBOR))
        stored = await _stored(services, cbor2.loads(answer.payload)["data"]["mid"])
        assert json.loads(stored.data) == {"intensity": 3} | ({"temperature": 0.5} if message is None else {})
        hall = await services.devices.registry.find(HALL)
        named = [(one.field, one.message) for one in services.messages.ingest.lost_fields.of(hall)]
        warned = [(one["field"], one["message"]) for one in cbor2.loads(answer.payload).get("warnings", [])]
        assert warned == ([("temperature", message)] if message else [])
        assert named == ([("temperature", message)] if message else named)

    async def test_names_as_many_fields_as_a_small_answer_takes(self, peer: Peer) -> None:
        body = {"data": {"state": True} | {f"unknown{number}": 1 for number in range(40)}}
        answer = await _posted(peer, KITCHEN_TOKEN, body)
        *named, rest = json.loads(answer.payload)["warnings"]
        assert len(answer.payload) < 700
        assert [one["field"] for one in named] == [f"unknown{number}" for number in range(len(named))]
        assert rest["field"] == "data"
        assert int(rest["message"].removesuffix(" more")) + len(named) == 21  # 20 fields, and how many more

    async def test_is_answered_only_after_the_commit(self, peer: Peer, services: Services) -> None:
        await _posted(peer, KITCHEN_TOKEN, STATE)
        peer.post(KITCHEN_TOKEN, STATE)  # its token is known now, so it is submitted at once
        assert peer.inbox == []
        await services.messages.ingest.wait_committed()
        assert peer.take().code == Code.CREATED

    async def test_not_confirmable(self, peer: Peer) -> None:
        answer = await _posted(peer, KITCHEN_TOKEN, STATE, type_=NON)
        assert (answer.type, answer.code) == (NON, Code.CREATED)

    async def test_keeps_the_time_of_the_sender(self, peer: Peer, services: Services) -> None:
        answer = await _posted(peer, KITCHEN_TOKEN, {"ts": NOW_MS - 5000, "type": "MESSAGE", **STATE})
        stored = await _stored(services, json.loads(answer.payload)["data"]["mid"])
        assert stored.ts == NOW_MS - 5000

    async def test_in_cbor_is_answered_in_cbor(self, peer: Peer, services: Services) -> None:
        answer = await _posted(peer, KITCHEN_TOKEN, cbor2.dumps(STATE), _format(CBOR))
        assert option(answer, Option.CONTENT_FORMAT) == uint(CBOR)
        stored = await _stored(services, cbor2.loads(answer.payload)["data"]["mid"])
        assert stored.data == '{"state":true}'

    @pytest.mark.parametrize(("asked", "answered"), [(CBOR, CBOR), (JSON, JSON)])
    async def test_is_answered_as_accepted(self, peer: Peer, asked: int, answered: int) -> None:
        other = JSON + CBOR - asked
        body = cbor2.dumps(STATE) if other == CBOR else json.dumps(STATE).encode()
        answer = await _posted(peer, KITCHEN_TOKEN, body, _format(other), _accept(asked))
        assert option(answer, Option.CONTENT_FORMAT) == uint(answered)

    async def test_is_stored_once_however_often_it_comes(self, peer: Peer, services: Services) -> None:
        for _ in range(3):
            peer.request(Code.POST, f"v1.1/messages/{KITCHEN_TOKEN}", json.dumps(STATE).encode(), message_id=77)
            await wait_all_tasks_blocked()
        assert [answer.code for answer in peer.inbox] == [Code.CREATED] * 3
        assert len({answer.payload for answer in peer.inbox}) == 1
        assert services.messages.ingest.statistics().messages == 1

    async def test_touches_presence_but_not_availability(self, peer: Peer, services: Services, world: World) -> None:
        await _posted(peer, KITCHEN_TOKEN, STATE)
        presence = await services.devices.presence.of(world.kitchen)
        assert (presence.last_seen_on, presence.availability) == (NOW_MS, "unknown")

    async def test_requests_with_one_unknown_token_keep_their_order(self, peer: Peer, services: Services) -> None:
        for number in range(5):
            peer.post(KITCHEN_TOKEN, {"data": {"intensity": number}})
        await wait_all_tasks_blocked()
        mids = [json.loads(answer.payload)["data"]["mid"] for answer in peer.inbox]
        stored = [(await _stored(services, mid)).data for mid in mids]
        assert stored == [f'{{"intensity":{number}}}' for number in range(5)]
        assert mids == sorted(mids)


@each_row(("ts", "stored"), [("5", 5), ("1759999999000.7", 1_759_999_999_000), (7.9, 7)])
async def test_a_time_may_be_a_text(peer: Peer, services: Services, ts: object, stored: int) -> None:
    peer.post(KITCHEN_TOKEN, {"ts": ts, **STATE})
    await wait_all_tasks_blocked()
    body = json.loads(peer.inbox[-1].payload)
    assert list(body) == ["data"]
    assert (await _stored(services, body["data"]["mid"])).ts == stored


async def test_a_time_in_seconds_is_told(peer: Peer, services: Services) -> None:
    peer.post(KITCHEN_TOKEN, {"ts": "1759999999", **STATE})
    await wait_all_tasks_blocked()
    body = json.loads(peer.inbox[-1].payload)
    assert [one["field"] for one in body["warnings"]] == ["ts"]
    assert (await _stored(services, body["data"]["mid"])).ts == 1_759_999_999


TEXT = {
    401: "Please provide a valid authorization header",
    413: f"Plan quota exceeded for device {KITCHEN}. Reason: Max payload Size limit",
}


@each_row(
    ("token", "body", "options", "expected"),
    [
        pytest.param("no such token", STATE, (), ("4.01", TEXT[401]), id="unknown token"),
        pytest.param("\N{SNOWMAN}", STATE, (), ("4.01", TEXT[401]), id="a token that is no text"),
        pytest.param(
            ADA_TOKEN, STATE, (), ("4.03", "You do not have publish permission to topic"), id="a user's token"
        ),
        pytest.param(
            KITCHEN_TOKEN,
            {"sdid": HALL, **STATE},
            (),
            ("4.03", "You do not have publish permission to topic"),
            id="another device",
        ),
        pytest.param(KITCHEN_TOKEN, b"", (), ("4.00", "Bad Request"), id="empty body"),
        pytest.param(KITCHEN_TOKEN, b"{", (), ("4.00", "Bad Request"), id="no JSON"),
        pytest.param(KITCHEN_TOKEN, b"[1]", (), ("4.00", "Bad Request"), id="no object"),
        pytest.param(KITCHEN_TOKEN, b'{"data":[]}', (), ("4.00", "Bad Request"), id="data is no object"),
        pytest.param(KITCHEN_TOKEN, b"\xff\xfe", (), ("4.00", "Bad Request"), id="no text"),
        pytest.param(KITCHEN_TOKEN, _nested(JSON_NESTING_MAX), (), ("4.13", TEXT[413]), id="as deep as may be"),
        pytest.param(KITCHEN_TOKEN, _nested(JSON_NESTING_MAX + 1), (), ("4.00", "Bad Request"), id="too deep"),
        pytest.param(KITCHEN_TOKEN, {"type": "action", **STATE}, (), ("4.00", "Bad Request"), id="an Action"),
        pytest.param(KITCHEN_TOKEN, {"type": 7, **STATE}, (), ("4.00", "Bad Request"), id="a type that is no text"),
        pytest.param(KITCHEN_TOKEN, {"ts": -1, **STATE}, (), ("4.00", "Invalid ts value"), id="negative time"),
        pytest.param(
            KITCHEN_TOKEN,
            {"ts": NOW_MS * 2, **STATE},
            (),
            ("4.00", "Invalid ts value (in future)"),
            id="time in the future",
        ),
        pytest.param(KITCHEN_TOKEN, {"data": {"text": "x" * 1100}}, (), ("4.13", TEXT[413]), id="data over 1,024"),
        pytest.param(KITCHEN_TOKEN, b" " * 2100, (), ("4.13", "Request body too large"), id="body over 2 KiB"),
        pytest.param(KITCHEN_TOKEN, STATE, (_format(0),), ("4.15", "Unsupported Content-Format"), id="text/plain"),
        pytest.param(KITCHEN_TOKEN, STATE, (_accept(0),), ("4.06", "Not Acceptable"), id="accepts text only"),
        pytest.param(KITCHEN_TOKEN, STATE, ((2049, b"x"),), ("4.02", "Bad Option 2049"), id="unknown critical option"),
        pytest.param(KITCHEN_TOKEN, STATE, ((5, b""),), ("4.02", "Bad Option 5"), id="If-None-Match"),
        pytest.param(KITCHEN_TOKEN, STATE, ((3, b""),), ("4.02", "Bad Option 3"), id="empty Uri-Host"),
        pytest.param(KITCHEN_TOKEN, STATE, ((7, b"a"), (7, b"b")), ("4.02", "Bad Option 7"), id="two Uri-Ports"),
        pytest.param(KITCHEN_TOKEN, STATE, ((27, b"\x0f"),), ("4.00", "Bad Request"), id="reserved block size"),
        pytest.param(KITCHEN_TOKEN, STATE, ((35, b"coap://x"),), ("5.05", "Proxying Not Supported"), id="Proxy-Uri"),
    ],
)
async def test_refused_post(
    peer: Peer, services: Services, token: str, body: object, options: tuple[tuple[int, bytes], ...], expected: object
) -> None:
    assert error(await _posted(peer, token, body, *options)) == expected
    assert services.messages.ingest.statistics().messages == 0


@each_row("body", [b"\xff", b"", b"\x9f" * 200, b"\x81" * 100, cbor2.dumps({"data": 1 << 80}), b"\xf7"])
async def test_refused_cbor_is_refused_in_cbor(peer: Peer, body: bytes) -> None:
    answer = await _posted(peer, KITCHEN_TOKEN, body, _format(CBOR))
    assert answer.code == 0x80
    assert cbor2.loads(answer.payload) == {"error": {"code": 400, "message": "Bad Request"}}


async def test_unknown_elective_options_are_ignored(peer: Peer) -> None:
    assert (await _posted(peer, KITCHEN_TOKEN, STATE, (2048, b"x"), (12, b"too long"))).code == Code.CREATED


async def test_unknown_critical_option_of_a_non_confirmable_gets_no_answer(peer: Peer) -> None:
    peer.post(KITCHEN_TOKEN, STATE, [(2049, b"x")], type_=NON)
    await wait_all_tasks_blocked()
    assert peer.inbox == []
    assert peer.session().message_layer.unanswered == 0


@each_row(
    ("method", "path", "expected"),
    [
        (Code.GET, "v1.1/messages/" + KITCHEN_TOKEN, ("4.05", "Method Not Allowed")),
        (Code.POST, "v1.1/actions/" + KITCHEN_TOKEN, ("4.05", "Method Not Allowed")),
        (Code.POST, ".well-known/core", ("4.05", "Method Not Allowed")),
        (Code.GET, "v1.1", ("4.04", "Not Found")),
        (Code.GET, "v1.1/nothing/" + KITCHEN_TOKEN, ("4.04", "Not Found")),
        (Code.POST, "v1.1/messages/a/b", ("4.04", "Not Found")),
        (Code.GET, "/", ("4.04", "Not Found")),
    ],
)
async def test_refused_path(peer: Peer, method: Code, path: str, expected: object) -> None:
    peer.request(method, path)
    assert error(peer.take()) == expected


async def test_a_trailing_slash_is_ignored(peer: Peer) -> None:
    peer.request(Code.POST, f"v1.1/messages/{KITCHEN_TOKEN}", json.dumps(STATE).encode(), [(Option.URI_PATH, b"")])
    await wait_all_tasks_blocked()
    assert peer.take().code == Code.CREATED


async def test_discovery(peer: Peer) -> None:
    peer.request(Code.GET, ".well-known/core")
    answer = peer.take()
    assert option(answer, Option.CONTENT_FORMAT) == uint(LINK_FORMAT)
    assert answer.payload == b'</v1.1/messages>;ct="50 60",</v1.1/actions>;ct="50 60";obs,</v1.1/wanted>;ct="50 60";obs'


async def test_discovery_in_small_blocks(peer: Peer) -> None:
    body = b""
    for number in range(10):
        peer.request(Code.GET, ".well-known/core", options=[(Option.BLOCK2, uint(number << 4))])
        answer = peer.take()
        body += answer.payload
        block = int.from_bytes(option(answer, Option.BLOCK2) or b"", "big")
        assert block >> 4 == number
        if not block & 8:
            break
    assert body == b'</v1.1/messages>;ct="50 60",</v1.1/actions>;ct="50 60";obs,</v1.1/wanted>;ct="50 60";obs'
    peer.request(Code.GET, ".well-known/core", options=[(Option.BLOCK2, uint(9 << 4))])
    assert error(peer.take())[0] == "4.00"


async def test_disabled_device(peer: Peer, services: Services, world: World) -> None:
    await disable_kitchen(services, world)
    assert error(await _posted(peer, KITCHEN_TOKEN, STATE)) == ("4.03", "Source device is disconnected")
    peer.observe(KITCHEN_TOKEN)
    await wait_all_tasks_blocked()
    assert error(peer.take()) == ("4.03", "Source device is disconnected")


class TestRank:
    """A session whose requests were refused stays unauthenticated, so it is evicted first."""

    async def test_of_a_device(self, peer: Peer) -> None:
        await _posted(peer, KITCHEN_TOKEN, STATE)
        assert peer.session().rank is SessionRank.AUTHENTICATED

    async def test_of_a_get_without_observe(self, peer: Peer) -> None:
        peer.request(Code.GET, f"v1.1/actions/{KITCHEN_TOKEN}")
        await wait_all_tasks_blocked()
        assert peer.session().rank is SessionRank.AUTHENTICATED

    async def test_of_a_disabled_device(self, peer: Peer, services: Services, world: World) -> None:
        await disable_kitchen(services, world)
        await _posted(peer, KITCHEN_TOKEN, STATE)
        for value in (0, 1):
            peer.observe(KITCHEN_TOKEN, value)
            await wait_all_tasks_blocked()
        assert peer.session().rank is SessionRank.UNAUTHENTICATED

    async def test_of_a_refused_body(self, peer: Peer) -> None:
        await _posted(peer, KITCHEN_TOKEN, b"{")
        assert peer.session().rank is SessionRank.UNAUTHENTICATED


class TestRankOverTheRateLimit:
    @pytest.fixture
    def settings(self, settings: Settings) -> Settings:
        return Settings(state_dir=settings.state_dir, limits=Limits(coap_device="1/5"))

    async def test_stays_unauthenticated(self, endpoint: CoapEndpoint) -> None:
        former, latter = Peer(endpoint, "former"), Peer(endpoint, "latter")
        assert (await _posted(former, KITCHEN_TOKEN, STATE)).code == Code.CREATED
        assert (await _posted(latter, KITCHEN_TOKEN, STATE)).code == 0x9D
        assert (former.session().rank, latter.session().rank) == (
            SessionRank.AUTHENTICATED,
            SessionRank.UNAUTHENTICATED,
        )


async def test_revoked_token(peer: Peer, services: Services, world: World) -> None:
    await _posted(peer, KITCHEN_TOKEN, STATE)
    await revoke_kitchen_token(services, world)
    assert error(await _posted(peer, KITCHEN_TOKEN, STATE))[0] == "4.01"


class TestTokenLookUps:
    async def test_are_bounded(self, peer: Peer, endpoint: CoapEndpoint, time: Time) -> None:
        for number in range(MAX_UNKNOWN_TOKENS + 10):
            time.now += 0.001  # as many strangers as are served in a second
            stranger = Peer(endpoint, ("192.0.2.9", number))
            stranger.post(f"unknown {number}", STATE)
            if number < MAX_UNKNOWN_TOKENS:
                assert stranger.inbox == []
            elif number > MAX_UNKNOWN_TOKENS + 4:  # the workers have taken some
                assert error(stranger.take()) == ("5.03", "Service Unavailable")
        await wait_all_tasks_blocked()
        assert (await _posted(peer, BOBS_TOKEN, STATE)).code == Code.CREATED

    async def test_of_one_token_are_bounded(self, endpoint: CoapEndpoint) -> None:
        peers = [Peer(endpoint, ("192.0.2.9", number)) for number in range(80)]
        for peer in peers:
            peer.post(KITCHEN_TOKEN, STATE)
        assert sum(len(peer.inbox) for peer in peers) == 16
        await wait_all_tasks_blocked()
        assert [peer.take().code for peer in peers].count(Code.CREATED) == 64

    @pytest.mark.parametrize(("owner", "method"), [(Ingest, "submit"), (Devices, "by_token")])
    async def test_an_unexpected_exception_is_answered_with_5_00_and_ends_nothing(
        self, peer: Peer, monkeypatch: pytest.MonkeyPatch, owner: type, method: str
    ) -> None:
        """A worker serves these requests, outside of the endpoint's containment of requests."""

        def broken(*_: object) -> int:
            raise ZeroDivisionError

        with monkeypatch.context() as patch, capture_logs() as logs:
            patch.setattr(owner, method, broken)
            answer = await _posted(peer, KITCHEN_TOKEN, STATE)
        assert error(answer) == ("5.00", "Internal Server Error")
        (logged,) = [entry for entry in logs if entry["event"] == "coap_request_failed"]
        assert json.loads(answer.payload)["error"]["id"] == logged["error_id"]
        assert (await _posted(peer, KITCHEN_TOKEN, STATE)).code == Code.CREATED


async def test_ping_is_answered_with_a_reset(peer: Peer) -> None:
    peer.send(bytes.fromhex("40001234"))
    assert peer.take() == CoapMessage(RST, Code.EMPTY, 0x1234)


async def test_a_message_that_could_not_be_stored(opener: ServicesOpener, engine: SqliteEngine, time: Time) -> None:
    broken = BreakableEngine(engine)
    async with opener(engine=broken) as services:
        await build_world(services.core.database, services.core.vault)
        await services.devices.registry.by_token(KITCHEN_TOKEN)
        peer = Peer(CoapEndpoint(services, now=time))
        broken.error = StoreError("disk full")
        peer.post(KITCHEN_TOKEN, STATE)
        await wait_all_tasks_blocked()
        answer = peer.take()
        assert error(answer) == ("5.03", "Service Unavailable")
        assert b"disk" not in answer.payload
        broken.error = None
        assert (await _posted(peer, KITCHEN_TOKEN, STATE)).code == Code.CREATED
