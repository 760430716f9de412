"""Plain calls have a short way past Hypercorn and Quart, and nobody can tell by the answer which way it took."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, cast

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from broker.limits.meters import Channel
from broker.limits.overhead import Overhead
from broker.services import Services
from config.limits import UNCOUNTED_BODY_BYTES
from config.settings import Address, Limits, Settings
from protocols.http.application import build_app
from protocols.http.direct import DirectCalls
from protocols.http.front_door import serve_http
from protocols.http.hypercorn_stream import HypercornStream
from protocols.http.peer_timeouts import PeerTimeouts
from protocols.http.plain_requests import plain_request
from protocols.http.rest.sending import Sending
from storage.sql import StoreError
from tests.factories import (
    ADA,
    ADA_TOKEN,
    APPLICATION_TOKEN,
    BOBS_TOKEN,
    DASHBOARD,
    HALL,
    KITCHEN,
    KITCHEN_TOKEN,
    LIGHT_TYPE,
    NOW_MS,
    World,
)
from tests.fakes import new_refusals
from tests.protocols.http.conftest import repeat_head

#: What no two answers have in common.
VARYING: Final = (
    (rb'("error":\{.*"id":")[0-9a-f]{32}', rb"\1"),
    (rb'("mid":")[0-9a-f]{32}', rb"\1"),
    (rb"(\r\ndate: ).*", rb"\1"),
    (rb"(\r\nrequest-time: )[0-9]+\.[0-9]{3}\r", rb"\1\r"),
    (rb"(\r\nx-rate-limit-remaining: )[0-9]+/[0-9]+", rb"\1"),
    (rb"(\r\nx-quota-[a-z]+-limits: )[0-9]+/", rb"\1"),
)
NAMES: Final = {"did": KITCHEN, "uid": ADA, "userId": ADA, "dtid": LIGHT_TYPE, "aid": DASHBOARD, "appId": DASHBOARD}
UNKNOWN: Final = "f" * 32
BODY: Final = '{"data":{"state":true}}'


def request(method: str, path: str, token: str = "", body: str = "", *more: str) -> bytes:
    lines = [f"{method} /v1.1{path} HTTP/1.1", "Host: localhost:1234", *more]
    if token:
        lines.append(f"Authorization: Bearer {token}")
    if body:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body.encode())}"]
    return "\r\n".join([*lines, "", body]).encode()


def post(body: str, token: str = KITCHEN_TOKEN, path: str = "/messages", *more: str) -> bytes:
    return request("POST", path, token, body, *more)


def get(path: str, token: str = ADA_TOKEN, *more: str) -> bytes:
    return request("GET", path, token, "", *more)


RANGE: Final = f"startDate=0&endDate={NOW_MS}"
ACTION: Final = '{"data":{"actions":[{"name":"setOn"}]}}'
#: In this order: the first ones store what the later ones find.
PLAIN: Final = (
    post(BODY),
    post(f'{{"sdid":"{HALL}","data":{{"state":false}},"ts":5}}', ADA_TOKEN),
    post('{"data":"{\\"state\\":true}"}', KITCHEN_TOKEN, "/messages", "Accept: */*", "X-Nothing:", "x-TAB:\t1 \t2\t"),
    post('{"data":{"unknown":1}}'),
    post(BODY, APPLICATION_TOKEN),
    post(BODY, BOBS_TOKEN),
    post(f'{{"sdid":"{UNKNOWN}","data":{{}}}}', ADA_TOKEN),
    post(f'{{"sdid":"{KITCHEN}","data":{{}}}}', BOBS_TOKEN),
    post('{"data":{"state":true},"ts":"soon"}'),
    post(f'{{"data":{{"state":true}},"ts":{NOW_MS + 3_600_000}}}'),
    post('{"type":"other","data":{}}'),
    post("{"),
    post("[1]"),
    post(" "),
    post(""),
    post('{"data":null}'),
    post('{"data":' + "[" * 900 + "]" * 900 + "}"),
    post(BODY, ""),
    post(BODY, "unknown"),
    post('{"type":"action","data":{"actions":[{"name":"setOn"}]}}'),
    post(ACTION, KITCHEN_TOKEN, "/actions"),
    post(f'{{"ddid":"{KITCHEN}","data":{{"actions":[]}}}}', ADA_TOKEN, "/actions"),
    post(BODY, KITCHEN_TOKEN, "/actions"),
    get(f"/messages?{RANGE}", KITCHEN_TOKEN),
    get(f"/messages?uid={ADA}&{RANGE}&order=DESC&count=1"),
    get(f"/messages?{RANGE}&uid=%73elf&count=x"),
    get("/messages?mid=1"),
    get("/messages"),
    get("/messages?"),
    get("/messages?&&=&a=b=c&?count=1"),
    get(f"/messages/last?sdids={KITCHEN},{HALL}&count=2"),
    get(f"/messages/snapshots?sdids={KITCHEN}"),
    get(f"/actions?{RANGE}"),
    get(f"/devices/{KITCHEN}"),
    get(f"/devices/{KITCHEN}?x={'y' * 2_000}"),
    get(f"/devices/{KITCHEN}", ADA_TOKEN, "Connection: Keep-Alive", "Cookie: a=b", "X: 1", "X: 2"),
    get(f"/devices/{KITCHEN}", ADA_TOKEN, f"X-Long: {'z' * 8_000}", "Forwarded: for=10.1.1.1"),
    request("PUT", f"/devices/{KITCHEN}", ADA_TOKEN, '{"name":"Kitchen light"}'),
    request("GET", f"/devices/{KITCHEN}", ADA_TOKEN, "{}"),
    get(f"/devices/{KITCHEN}", APPLICATION_TOKEN),
    get(f"/devices/{KITCHEN}", APPLICATION_TOKEN),
)
WITH_TOKEN: Final = f"\r\nHost: a\r\nAuthorization: Bearer {ADA_TOKEN}\r\n".encode()
#: What ends a request that goes the long way: then both ends close.
CLOSE: Final = b"GET /v1.1/users/self HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
NOT_PLAIN: Final = (
    b"GET /v1.1/devices/%s HTTP/1.0%s\r\n" % (KITCHEN.encode(), WITH_TOKEN),
    b"GET /v1.1/devices/%s/ HTTP/1.1%s\r\n" % (KITCHEN.encode(), WITH_TOKEN),
    b"GET /v1.1/devices/%%%02x%s HTTP/1.1%s\r\n" % (ord(KITCHEN[0]), KITCHEN[1:].encode(), WITH_TOKEN),
    b"GET http://a/v1.1/devices/%s HTTP/1.1%s\r\n" % (KITCHEN.encode(), WITH_TOKEN),
    b"GET /v1.1//devices/%s HTTP/1.1%s\r\n" % (KITCHEN.encode(), WITH_TOKEN),
    b"GET /v1.1/devices/%s HTTP/1.1%sConnection: close\r\n\r\n" % (KITCHEN.encode(), WITH_TOKEN),
    b"GET /v1.1/devices/%s HTTP/1.1%sX: \xe9\r\n\r\n" % (KITCHEN.encode(), WITH_TOKEN),
    b"GET /v1.1/devices/%s HTTP/1.1%sX: a\r\n b\r\n\r\n" % (KITCHEN.encode(), WITH_TOKEN),
    b"GET /v1.1/devices/%s HTTP/1.1%sHost: b\r\n\r\n" % (KITCHEN.encode(), WITH_TOKEN),
    b"GET /v1.1/devices/%s HTTP/1.1%sAuthorization: Bearer x\r\n\r\n" % (KITCHEN.encode(), WITH_TOKEN),
    b"GET /v1.1/devices/%s HTTP/1.1\r\nAuthorization: Bearer x\r\n\r\n" % KITCHEN.encode(),
    b"GET /v1.1/devices/%s HTTP/1.1%s\r\n" % (KITCHEN.encode(), WITH_TOKEN.replace(b"\r\n", b"\n")),
    b"\r\nGET /v1.1/devices/%s HTTP/1.1%s\r\n" % (KITCHEN.encode(), WITH_TOKEN),
    b"HEAD /v1.1/devices/%s HTTP/1.1%s\r\n" % (KITCHEN.encode(), WITH_TOKEN),
    b"OPTIONS /v1.1/messages HTTP/1.1\r\nHost: a\r\n\r\n",
    b"PATCH /v1.1/messages HTTP/1.1%s\r\n" % WITH_TOKEN,
    b"DELETE /v1.1/messages HTTP/1.1%s\r\n" % WITH_TOKEN,
    b"GET /v1.1/nothing HTTP/1.1%s\r\n" % WITH_TOKEN,
    b"GET /v1.1 HTTP/1.1%s\r\n" % WITH_TOKEN,
    b"GET /health HTTP/1.1%s\r\n" % WITH_TOKEN,
    b"POST /v1.1/messages HTTP/1.1%sTransfer-Encoding: chunked\r\n\r\n3\r\n{ }\r\n0\r\n\r\n" % WITH_TOKEN,
    b"POST /v1.1/messages HTTP/1.1%sContent-Length: +2\r\n\r\n{}" % WITH_TOKEN,
    b"POST /v1.1/messages HTTP/1.1%sContent-Length: 2\r\nContent-Length: 2\r\n\r\n{}" % WITH_TOKEN,
    b"POST /v1.1/messages HTTP/1.1%sUpgrade: h2c\r\nContent-Length: 2\r\n\r\n{}" % WITH_TOKEN,
    post('{"data":"%s"}' % ("x" * UNCOUNTED_BODY_BYTES)),
    request("POST", "/devicetypes", ADA_TOKEN, "{}"),
    get("/" + "a" * 300),
)


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """An application may make two calls: one on each way. The others have enough."""
    enough = "9999/99999"
    limits = Limits(
        rest_user=enough,
        rest_device=enough,
        rest_application="2/99",
        messages_user=enough,
        messages_device=enough,
        calls_per_address=9999,
    )
    return Settings(state_dir=settings.state_dir, limits=limits)


@asynccontextmanager
async def listening(services: Services, nursery: trio.Nursery) -> AsyncIterator[Address]:
    yield await nursery.start(partial(serve_http, services, Address("127.0.0.1", 0), nursery, websocket=repeat_head))


class Left(list[bytes]):
    """What each connection left for the long way; empty for one that ended on the short way."""

    def __init__(self) -> None:
        super().__init__()
        self._noted = trio.Event()

    def note(self, left: bytes) -> bytes:
        self.append(left)
        self._noted.set()
        return left

    async def first(self) -> bytes:
        with trio.fail_after(60):
            await self._noted.wait()
        return self[0]


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> Left:
    found, serve = Left(), DirectCalls.serve

    async def noting(calls: DirectCalls, *arguments: Any) -> bytes:
        return found.note(await serve(calls, *arguments))

    monkeypatch.setattr(DirectCalls, "serve", noting)
    return found


@pytest.fixture
async def short(services: Services, world: World, nursery: trio.Nursery) -> Address:
    async with listening(services, nursery) as address:
        return address


@pytest.fixture
async def long(services: Services, short: Address, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch) -> Address:
    """A listener whose requests all go the long way. It is made after the other one: fixtures are made side by side."""
    with monkeypatch.context() as patch:
        patch.setattr("protocols.http.front_door.short_way", lambda *_, **__: None)
        async with listening(services, nursery) as address, connected(address) as client:
            for sent in (get(f"/devices/{KITCHEN}/quota"), post(BODY)):
                await client.ask(sent)  # from now on, the plan is known
            return address


class Client:
    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream

    async def ask(self, sent: bytes) -> bytes:
        """The answer, without what varies."""
        await self._stream.send_all(sent)
        received = b""
        while (end := received.find(b"\r\n\r\n")) < 0:
            received += await self._more()
        length = re.search(rb"\r\ncontent-length: ([0-9]+)\r\n", received)
        assert length is not None, received
        whole = end + 4 + int(length[1])
        while len(received) < whole:
            received += await self._more()
        assert len(received) == whole
        return without_what_varies(received)

    async def _more(self) -> bytes:
        received = bytes(await self._stream.receive_some())
        assert received, "the server has closed"
        return received

    async def end(self, sent: bytes) -> bytes:
        """All that comes until the server closes."""
        await self._stream.send_all(sent)
        received = b""
        while more := await self._stream.receive_some():
            received += more
        return without_what_varies(received)


def without_what_varies(answer: bytes) -> bytes:
    for pattern, kept in VARYING:
        answer = re.sub(pattern, kept, answer)
    return answer


@asynccontextmanager
async def connected(address: Address) -> AsyncIterator[Client]:
    async with await trio.open_tcp_stream(address.host, address.port) as stream:
        yield Client(stream)


async def test_both_ways_answer_plain_requests_alike(short: Address, long: Address, left: Left) -> None:
    async with connected(short) as one, connected(long) as other:
        for sent in PLAIN:
            assert await one.ask(sent) == await other.ask(sent), sent
            assert not left, sent
    assert await left.first() == b""


async def test_other_requests_go_the_long_way_from_their_first_byte_on(
    short: Address, long: Address, left: Left
) -> None:
    for sent in NOT_PLAIN:
        left.clear()
        async with connected(short) as one, connected(long) as other:
            assert await one.end(sent + CLOSE) == await other.end(sent + CLOSE), sent
        assert left, sent
        assert sent.lstrip().startswith(left[0][:20]), sent


def calls_of(services: Services) -> list[tuple[str, str]]:
    """Method and path of each plain call, with the names of things that exist, and of others."""
    app = build_app(services)
    found = []
    for rule in app.url_map.iter_rules():
        if rule.endpoint in app.extensions["plain_calls"]:
            method, path = rule.endpoint.removeprefix("rest.").split()
            found.append((method, re.sub(r"{\w+}", UNKNOWN, path)))
            if method == "GET":
                found.append((method, re.sub(r"{(\w+)}", lambda name: NAMES.get(name[1], UNKNOWN), path)))
    return found


async def test_both_ways_answer_every_plain_call_alike(
    services: Services, short: Address, long: Address, left: Left
) -> None:
    asked = calls_of(services)
    assert len(asked) > 200
    async with connected(short) as one, connected(long) as other:
        for method, path in asked:
            body = "" if method == "GET" else "{"
            for token in ("", KITCHEN_TOKEN, ADA_TOKEN) if method == "GET" else (KITCHEN_TOKEN, ADA_TOKEN):
                sent = request(method, f"{path}?count=none", token, body)
                assert await one.ask(sent) == await other.ask(sent), sent
                assert not left, sent


async def test_a_plain_call_counts_and_is_charged_as_on_the_long_way(
    services: Services, short: Address, long: Address, left: Left
) -> None:
    caller = await services.accounts.tokens.caller(KITCHEN_TOKEN)
    meter = services.limits.meters.of(Channel.MESSAGES, caller)
    assert meter is not None
    spent = []
    for address in (short, long):
        before = meter.standing().remaining.minute
        async with connected(address) as client:
            for sent in PLAIN[:3]:
                await client.ask(sent)
        spent.append(before - meter.standing().remaining.minute)
    assert spent == [2, 2]  # the second is Ada's


async def test_a_connection_goes_the_long_way_and_comes_back(short: Address, left: Left) -> None:
    head = get(f"/devices/{KITCHEN}")
    async with connected(short) as client:
        expected = await client.ask(head)
        odd = NOT_PLAIN[1]
        await client.ask(odd)
        assert left == [odd]
        for _ in range(3):
            assert await client.ask(head) == expected
        assert left == [odd]
        await client.ask(odd)
        assert left == [odd, odd]


async def test_an_answer_of_the_long_way_is_sent_before_one_of_the_short_way() -> None:
    """Also to a client that sends the next request before it has read the answer."""
    ours, theirs = trio.socket.socketpair()

    class Direct:
        async def serve(
            self, _received: bytes, stream: trio.SocketStream, begin: Callable[[], Awaitable[None]]
        ) -> bytes:
            await begin()
            await stream.send_all(b"second")
            return b""

    with theirs:
        stream = HypercornStream(
            b"", trio.SocketStream(ours), PeerTimeouts(grace_seconds=1), Overhead(), new_refusals()
        )
        stream.direct = cast("DirectCalls", Direct())
        await stream.send_all(b"first ")
        await theirs.send(get(f"/devices/{KITCHEN}"))
        assert await stream.receive_some() == b""
        assert await theirs.recv(100) == b"first second"
        await stream.aclose()


async def test_a_body_behind_its_head_is_waited_for(short: Address, left: Left, mock_clock: MockClock) -> None:
    async with await trio.open_tcp_stream(short.host, short.port) as stream:
        for byte in post(BODY):
            await stream.send_all(bytes([byte]))
        assert (await stream.receive_some()).startswith(b"HTTP/1.1 200")
    assert await left.first() == b""


async def test_a_body_that_is_late_goes_the_long_way(short: Address, left: Left) -> None:
    sent = post(BODY)
    head = sent[: -len(BODY)]
    async with await trio.open_tcp_stream(short.host, short.port) as stream:
        await stream.send_all(head)
        assert await left.first() == head
        await stream.send_all(BODY.encode())
        assert (await stream.receive_some()).startswith(b"HTTP/1.1 200")


async def test_requests_in_one_segment_are_answered_in_their_order(short: Address, left: Left) -> None:
    sent = post(BODY) + get(f"/devices/{KITCHEN}") + CLOSE
    async with connected(short) as client:
        answers = await client.end(sent)
    assert [int(status) for status in re.findall(rb"HTTP/1.1 ([0-9]+) ", answers)] == [200, 200, 401]
    assert left == [sent]


async def test_a_failure_of_the_store_and_a_bug_are_answered_alike(
    short: Address, long: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    for raised in (
        StoreError("disk"),
        KeyError("bug"),
        ExceptionGroup("two", [ValueError("bug"), StoreError("disk")]),
        ExceptionGroup("two", [ValueError("bug")]),
    ):

        async def fail(*_: object, failure: Exception = raised) -> None:
            raise failure

        monkeypatch.setattr(Sending, "message", fail)
        with capture_logs() as logs:
            async with connected(short) as one, connected(long) as other:
                assert await one.ask(post(BODY)) == await other.ask(post(BODY))
        mine, theirs = [
            {name: value for name, value in entry.items() if name not in {"error_id", "exc_info"}}
            for entry in logs
            if entry["event"].startswith("http_")
        ]
        assert mine == theirs


def test_plain_requests_are_read_whole() -> None:
    for sent in PLAIN:
        plain = plain_request(sent)
        assert plain is not None, sent
        assert plain.head_length + plain.body_length == len(sent)
