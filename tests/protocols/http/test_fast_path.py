"""Plain calls have a fast path past Hypercorn and Quart, and nobody can tell by the answer which way it took."""

import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.limits.meters import Channel
from broker.messages.ingest import Ingest
from broker.services import Services
from config.limits import UNCOUNTED_BODY_BYTES
from config.rates import Rate
from config.settings import Address, Limits, Settings
from protocols.http.application import build_app
from protocols.http.calls import FORM
from protocols.http.connection import KEEP_ALIVE_SECONDS, HttpConnection
from protocols.http.heads import parse_head
from protocols.http.hypercorn_adapter import HypercornAdapter
from protocols.http.hypercorn_exchange import HypercornExchange
from protocols.http.rest.sending import Sending
from protocols.http.server import serve_http
from protocols.streams.turnstile import Turnstile
from storage.database import Database
from storage.group_writer import GroupWriter
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
from tests.properties import chance
from tests.protocols.http.conftest import repeat_head

pytestmark = pytest.mark.slow


#: What no two answers have in common.
VARYING: Final = (
    (rb'("error":\{.*?"id":")[0-9a-f]{32}', rb"\1"),
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
#: What ends a request that takes the slow path: then both ends close.
CLOSE: Final = b"GET /v1.1/users/self HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
FOR_SLOW_PATH: Final = (
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
    b"DELETE /v1.1/actions HTTP/1.1%s\r\n" % WITH_TOKEN,
    b"GET /v1.1/nothing HTTP/1.1%s\r\n" % WITH_TOKEN,
    b"GET /v1.1 HTTP/1.1%s\r\n" % WITH_TOKEN,
    b"GET /health HTTP/1.1%s\r\n" % WITH_TOKEN,
    b"POST /v1.1/messages HTTP/1.1%sTransfer-Encoding: chunked\r\n\r\n3\r\n{ }\r\n0\r\n\r\n" % WITH_TOKEN,
    b"POST /v1.1/messages HTTP/1.1%sContent-Length: +2\r\n\r\n{}" % WITH_TOKEN,
    b"POST /v1.1/messages HTTP/1.1%sContent-Length: 2\r\nContent-Length: 2\r\n\r\n{}" % WITH_TOKEN,
    b"POST /v1.1/messages HTTP/1.1%sUpgrade: h2c\r\nContent-Length: 2\r\n\r\n{}" % WITH_TOKEN,
    post('{"data":"%s"}' % ("x" * UNCOUNTED_BODY_BYTES)),
    post(BODY, KITCHEN_TOKEN, "/messages", "Content-Encoding: gzip"),
    post(BODY, KITCHEN_TOKEN, "/messages", "Content-encoding: identity"),
    post(BODY, KITCHEN_TOKEN, "/messages", "Content-Encoding: identity", "Content-Encoding: br"),
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
    """The first bytes of each request that takes the slow path; empty for the end of a connection."""

    def __init__(self) -> None:
        super().__init__()
        self._noted = trio.Event()

    def note(self, left: bytes) -> None:
        self.append(left)
        self._noted.set()

    async def first(self) -> bytes:
        with trio.fail_after(60):
            await self._noted.wait()
        return self[0]


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> Left:
    found, serve = Left(), HypercornAdapter.serve

    async def noting(adapter: HypercornAdapter, received: bytes, connection: HttpConnection) -> HypercornExchange:
        if connection._listener.fast_path is not None:
            found.note(received)
        return await serve(adapter, received, connection)

    def leave(connection: HttpConnection) -> None:
        if connection._listener.fast_path is not None:
            found.note(b"")

    monkeypatch.setattr(HypercornAdapter, "serve", noting)
    monkeypatch.setattr(HttpConnection, "leave", leave)
    return found


@pytest.fixture
async def short(services: Services, world: World, nursery: trio.Nursery) -> Address:
    async with listening(services, nursery) as address:
        return address


@pytest.fixture
async def long(services: Services, short: Address, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch) -> Address:
    """A listener whose requests all take the slow path. Made after the other one: fixtures are made side by side."""
    with monkeypatch.context() as patch:
        patch.setattr("protocols.http.server.fast_path", lambda *_, **__: None)
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


async def test_strangers_pass_a_turnstile_of_their_own_before_the_slow_path(
    services: Services, world: World, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered = []

    class Counting(Turnstile):
        async def enter(self) -> None:
            entered.append(1)
            await super().enter()

    monkeypatch.setattr("protocols.http.server.Turnstile", Counting)
    async with listening(services, nursery) as address, connected(address) as client:
        await client.ask(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
        assert len(entered) == 1
        await client.ask(get("/users/self/"))  # from now on, the peer is known
        before = len(entered)
        await client.ask(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
        assert len(entered) == before


async def test_both_paths_answer_requests_alike(short: Address, long: Address, left: Left) -> None:
    async with connected(short) as one, connected(long) as other:
        for sent in PLAIN:
            assert await one.ask(sent) == await other.ask(sent), sent
            assert not left, sent
    assert await left.first() == b""


async def test_other_requests_go_the_slow_path_from_their_first_byte_on(
    short: Address, long: Address, left: Left
) -> None:
    for sent in FOR_SLOW_PATH:
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
        if rule.endpoint in app.extensions["fast_calls"]:
            method, path = rule.endpoint.removeprefix("rest.").split()
            found.append((method, re.sub(r"{\w+}", UNKNOWN, path)))
            if method == "GET":
                found.append((method, re.sub(r"{(\w+)}", lambda name: NAMES.get(name[1], UNKNOWN), path)))
    return found


async def test_both_paths_answer_every_call_alike(
    services: Services, short: Address, long: Address, left: Left
) -> None:
    """Each call with one of the tokens, which do not depend on it; with which one differs in each run."""
    asked, turn = calls_of(services), chance().randrange(3)
    assert len(asked) > 200
    async with connected(short) as one, connected(long) as other:
        for number, (method, path) in enumerate(asked, start=turn):
            body = "" if method == "GET" else "{"
            tokens = ("", KITCHEN_TOKEN, ADA_TOKEN) if method == "GET" else (KITCHEN_TOKEN, ADA_TOKEN)
            sent = request(method, f"{path}?count=none", tokens[number % len(tokens)], body)
            assert await one.ask(sent) == await other.ask(sent), sent
            assert not left, sent


async def test_headers_and_bodies_of_other_kinds_are_read_alike_on_both_paths(
    short: Address, long: Address, left: Left
) -> None:
    scene = f'{{"name":"Night","actions":[{{"ddid":"{KITCHEN}","action":"setOn"}}]}}'
    form = '--x\r\nContent-Disposition: form-data; name="file"; filename="a.csv"\r\n\r\nvdid\r\n--x--\r\n'
    multipart = "Content-Type: multipart/form-data; boundary=x"
    async with connected(short) as one, connected(long) as other:
        made = await one.ask(request("POST", f"/scenes?uid={ADA}", ADA_TOKEN, scene))
        found = re.search(rb'"id":"([0-9a-f]{32})"', made)
        assert found is not None, made
        path = f"/scenes/{found[1].decode()}"
        for status, sent in (
            (200, get(f"{path}/provision")),
            (200, get(f"{path}/provision", ADA_TOKEN, "Accept: text/plain;q=0.9, application/toml;q=0.1")),
            (412, request("PUT", path, ADA_TOKEN, '{"name":"Day"}', 'If-Match: "x"')),
            (200, request("PUT", path, ADA_TOKEN, '{"name":"Day"}', "If-Match: *")),
            (400, get("/cloudconnectors/none/auth?state=x", "")),
            (400, post("mobile=x", ADA_TOKEN, f"/devices/{KITCHEN}/providerauth", f"Content-Type: {FORM}")),
            (409, post("{}", ADA_TOKEN, f"/devices/{KITCHEN}/providerauth", "Referer: https://example.org")),
            (409, post("{}", "", f"/cloudconnectors/{LIGHT_TYPE}/thirdpartynotifications?a=b")),
            (
                403,
                post(
                    form,
                    BOBS_TOKEN,
                    f"/devicetypes/{LIGHT_TYPE}/whitelist",
                    multipart,
                ),
            ),
            (404, post('{"aid":"5","nonce":"5"}', "", f"/subscriptions/{UNKNOWN}/validate")),
        ):
            answer = await one.ask(sent)
            assert answer.startswith(b"HTTP/1.1 %d " % status), answer
            assert answer == await other.ask(sent), sent
    assert not any(left)


async def test_a_plain_call_without_a_token_counts_against_its_address(
    services: Services, short: Address, left: Left
) -> None:
    services.limits.addresses.renew(2)
    async with connected(short) as client:
        answers = [
            await client.ask(post('{"aid":"5","nonce":"5"}', "", f"/subscriptions/{UNKNOWN}/validate"))
            for _ in range(3)
        ]
    assert [answer[:13] for answer in answers] == [b"HTTP/1.1 404 "] * 2 + [b"HTTP/1.1 429 "]


async def test_a_plain_call_counts_and_is_charged_as_on_the_slow_path(
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


async def test_a_connection_goes_the_slow_path_and_comes_back(short: Address, left: Left) -> None:
    head = get(f"/devices/{KITCHEN}")
    async with connected(short) as client:
        expected = await client.ask(head)
        odd = FOR_SLOW_PATH[1]
        await client.ask(odd)
        assert left == [odd]
        for _ in range(3):
            assert await client.ask(head) == expected
        assert left == [odd]
        await client.ask(odd)
        assert left == [odd, odd]


async def test_a_body_behind_its_head_is_waited_for(short: Address, left: Left, mock_clock: MockClock) -> None:
    async with await trio.open_tcp_stream(short.host, short.port) as stream:
        for byte in post(BODY):
            await stream.send_all(bytes([byte]))
        assert (await stream.receive_some()).startswith(b"HTTP/1.1 200")
    assert await left.first() == b""


async def test_a_body_that_is_late_goes_the_slow_path(
    short: Address, left: Left, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("protocols.http.connection._BODY_SECONDS", 0.0)
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
    assert left == [CLOSE, b""]


async def test_a_failure_of_the_store_and_a_bug_are_answered_alike(
    short: Address, long: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    for raised in (
        StoreError("disk"),
        KeyError("bug"),
        ExceptionGroup("two", [ValueError("bug"), StoreError("disk")]),
        ExceptionGroup("two", [ValueError("bug")]),
    ):

        def fail(*_: object, failure: Exception = raised) -> None:
            raise failure

        monkeypatch.setattr(Sending, "_submit", fail)
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
        plain = parse_head(sent)
        assert plain is not None, sent
        assert plain.head_length + plain.body_length == len(sent)


async def test_a_head_that_comes_in_pieces_behind_another_request_is_one_head(
    short: Address, long: Address, left: Left
) -> None:
    """Its rest is not taken for a request of its own, nor its end for an empty line before the next one."""
    first, second = get(f"/devices/{KITCHEN}"), get(f"/devices/{HALL}", ADA_TOKEN, "Connection: close")
    begun = f"GET /v1.1/devices/{HALL} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nX: ".encode()
    inner = b"GET /v1.1/users/self HTTP/1.1" + WITH_TOKEN.replace(b"Host: a", b"Y: a")
    upgrade = inner.replace(b"Y: a", b"Connection: upgrade\r\nUpgrade: websocket")
    for ahead, rest, expected in (
        (second[:-2], second[-2:], b"HTTP/1.1 200 "),
        (second[:-4], second[-4:], b"HTTP/1.1 200 "),
        (begun, inner + b"\r\n", b"HTTP/1.1 200 "),
        (begun, upgrade + b"\r\n", begun),  # as the server of WebSockets gets it
    ):
        answers = []
        for address in (short, long):
            async with connected(address) as client:
                received = await client.ask(first + ahead)
                answers.append(received + await client.end(rest))
        assert answers[0] == answers[1], rest
        assert HALL.encode() in answers[0], rest
        assert expected in answers[0][100:], rest
        assert b"ada@" not in answers[0], rest


async def test_an_empty_line_behind_a_request_begins_no_head(short: Address, left: Left) -> None:
    """The connection stays as long as any other, and goes back to the fast path."""
    async with connected(short) as client:
        expected = await client.ask(get(f"/devices/{KITCHEN}"))
        odd = FOR_SLOW_PATH[1] + b"\r\n"
        await client.ask(odd)
        assert await client.ask(get(f"/devices/{KITCHEN}")) == expected
        assert left == [odd]


async def test_what_comes_behind_the_last_request_changes_nothing(short: Address, long: Address) -> None:
    """Sketches for small devices end a body with an empty line, and ask to close the connection."""
    last = post(BODY, KITCHEN_TOKEN, "/messages", "Connection: close")
    for sent in (last, last.replace(b"HTTP/1.1", b"HTTP/1.0"), post(BODY).replace(b"HTTP/1.1", b"HTTP/1.0")):
        for behind in (b"", b"\r\n", get(f"/devices/{KITCHEN}"), b"\0"):
            for address in (short, long):
                async with connected(address) as client:
                    answers = await client.end(sent + behind)
                assert re.findall(rb"HTTP/1.1 ([0-9]+) ", answers) == [b"200"], sent + behind


# --- Connections of devices, which the hub reads from ---


@pytest.fixture
def accepted(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each request that the hub has read and that looks like a message: whether it was accepted at once."""
    found: list[bool] = []
    submit = HttpConnection._submit

    def noting(connection: HttpConnection, *arguments: Any) -> bool:
        result = submit(connection, *arguments)
        found.append(connection._in_flight)
        return result

    monkeypatch.setattr(HttpConnection, "_submit", noting)
    return found


async def test_messages_of_a_parked_connection_are_answered_as_on_the_slow_path(
    short: Address, long: Address, accepted: list[bool]
) -> None:
    posts = [sent for sent in PLAIN if sent.startswith(b"POST")]
    more = (
        post('{"data":{"state":true,"opne":1,"a":{"b":2}}}'),
        post('{"data":{"state":true},"ts":"1760000000000","type":"MESSAGE"}'),
        post(f'{{"sdid":"{KITCHEN}","data":{{"state":true}}}}'),
        post(f'{{"sdid":"{HALL}","data":{{"state":true}}}}'),
        post('{"data":"text"}'),
        post('{"sdid":5,"ts":[],"data":{}}'),
        post(BODY, KITCHEN_TOKEN, "/messages?count=x&type=action"),
        post(BODY, KITCHEN_TOKEN.upper()),
    )
    for sent in (*posts, *more):
        async with connected(short) as one, connected(long) as other:
            for _ in range(2):
                assert await one.ask(post(BODY)) == await other.ask(post(BODY))
            assert accepted.pop()
            assert await one.ask(sent) == await other.ask(sent), sent
            assert await one.ask(post(BODY)) == await other.ask(post(BODY)), sent
    assert accepted.count(True) > 10
    assert accepted.count(False) > 10


async def test_a_parked_connection_refuses_a_token_that_has_ended(
    services: Services, short: Address, accepted: list[bool]
) -> None:
    async with connected(short) as client:
        for _ in range(2):
            assert (await client.ask(post(BODY))).startswith(b"HTTP/1.1 200 ")
        assert accepted == [True]
        await services.devices.tokens.remove(await services.devices.registry.find(KITCHEN))
        for _ in range(2):
            assert (await client.ask(post(BODY))).startswith(b"HTTP/1.1 401 ")
    assert accepted == [True, False]


async def test_a_parked_connection_counts_and_is_charged_as_on_the_slow_path(
    services: Services, short: Address, long: Address, accepted: list[bool]
) -> None:
    caller = await services.accounts.tokens.caller(KITCHEN_TOKEN)
    meter = services.limits.meters.of(Channel.MESSAGES, caller)
    assert meter is not None
    answers = []
    for address in (short, long):
        meter.rate = Rate(meter.rate.minute - meter.standing().remaining.minute + 3, 99_999)
        async with connected(address) as client:
            before = services.messages.ingest.statistics().messages
            answers.append([await client.ask(post(BODY)) for _ in range(5)])
            assert services.messages.ingest.statistics().messages - before == 3
    mine, theirs = [[re.sub(rb"x-rate-limit-(limit|reset): .*", b"", one) for one in some] for some in answers]
    assert mine == theirs
    assert [answer[:13] for answer in answers[0]] == [b"HTTP/1.1 200 "] * 3 + [b"HTTP/1.1 429 "] * 2
    assert accepted == [True, True, False, False]


async def test_a_commit_that_fails_and_a_bug_are_answered_alike_on_a_parked_connection(
    services: Services, short: Address, long: Address, accepted: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise StoreError("disk")

    def break_(*_: object) -> None:
        raise KeyError("bug")

    async with connected(short) as one, connected(long) as other:
        for client in (one, other):
            await client.ask(post(BODY))
        for where, name, failure, status in (
            (GroupWriter, "commit", fail, b"503"),
            (Ingest, "submit", break_, b"500"),
            (Ingest, "mid", break_, b"500"),
        ):
            with monkeypatch.context() as patch, capture_logs() as logs:
                patch.setattr(where, name, failure)
                answers = [await client.ask(post(BODY)) for client in (one, other)]
            assert answers[0] == answers[1]
            assert answers[0].startswith(b"HTTP/1.1 %b " % status)
            mine, theirs = [
                {name: value for name, value in entry.items() if name not in {"error_id", "exc_info"}}
                for entry in logs
                if entry["event"].startswith("http_")
            ]
            assert mine == theirs
        assert (await one.ask(post(BODY))).startswith(b"HTTP/1.1 200 ")
    assert len(accepted) == 4


class Commits:
    """Holds back the commits of the store."""

    def __init__(self, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        self._go_on = trio.Event()
        self._commit = database._commit_open_group
        self.begun = trio.Event()
        monkeypatch.setattr(database, "_commit_open_group", self._held)

    async def _held(self) -> None:
        self.begun.set()
        with trio.CancelScope(shield=True):
            await self._go_on.wait()
            await self._commit()

    def go_on(self) -> None:
        self._go_on.set()


async def test_what_comes_while_a_message_is_in_flight_waits_for_its_answer(
    services: Services, short: Address, left: Left, accepted: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers come in the order of the requests, and the end of the stream loses none."""
    behind = get(f"/devices/{KITCHEN}", ADA_TOKEN, "Connection: close")
    for more, expected in ((post(BODY) + behind, [b"200"] * 3), (behind, [b"200"] * 2), (b"", [b"200"])):
        async with await trio.open_tcp_stream(short.host, short.port) as stream:
            await stream.send_all(post(BODY))
            await stream.receive_some()
            with monkeypatch.context() as patch:
                commits = Commits(services.core.database, patch)
                await stream.send_all(post(BODY))
                await commits.begun.wait()
                if more:
                    await stream.send_all(more)
                else:
                    await stream.send_eof()
                await wait_all_tasks_blocked()
                commits.go_on()
                received = b""
                while part := await stream.receive_some():
                    received += part
            assert re.findall(rb"HTTP/1.1 ([0-9]+) ", received) == expected
    assert accepted == [True] * 4


async def test_a_client_that_does_not_read_gets_its_whole_answer_later(
    services: Services, short: Address, accepted: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the operating system does not take at once, the connection's task sends."""
    await services.limits.quotas.reload()  # from now on, the plan is known
    monkeypatch.setattr(HttpConnection, "_send_now", lambda served, data: os.write(served._socket.fileno(), data[:10]))
    async with connected(short) as client:
        expected = await client.ask(post(BODY))
        for sent in (post(BODY), post('{"data":{"state":5}}'), post(f'{{"data":{{"state":true}},"ts":{"9" * 15}}}')):
            answer = await client.ask(sent)
            assert answer.startswith(b"HTTP/1.1 ")
        assert await client.ask(post(BODY)) == expected
    assert accepted == [True, True, False, True]


async def test_a_parked_connection_ends_after_the_keep_alive_time_since_its_last_answer(
    short: Address, accepted: list[bool], mock_clock: MockClock
) -> None:
    async with await trio.open_tcp_stream(short.host, short.port) as stream:
        for _ in range(3):
            await stream.send_all(post(BODY))
            assert (await stream.receive_some()).startswith(b"HTTP/1.1 200 ")
            await wait_all_tasks_blocked()
            mock_clock.jump(KEEP_ALIVE_SECONDS - 1)
            await wait_all_tasks_blocked()
        mock_clock.jump(1)
        assert await stream.receive_some() == b""
    assert accepted == [True, True]


async def test_a_message_that_came_while_the_daemon_was_paused_is_answered(
    short: Address, accepted: list[bool], mock_clock: MockClock
) -> None:
    """As test_server.py has it for other requests: the keep-alive time is over, and bytes lie in the socket."""
    async with await trio.open_tcp_stream(short.host, short.port) as stream:
        for seconds in (0, KEEP_ALIVE_SECONDS + 1, KEEP_ALIVE_SECONDS + 1):
            await wait_all_tasks_blocked()
            await stream.send_all(post(BODY))
            mock_clock.jump(seconds)
            assert (await stream.receive_some()).startswith(b"HTTP/1.1 200 ")


async def test_a_parked_connection_answers_what_is_in_flight_and_ends_when_the_daemon_stops(
    services: Services, short: Address, accepted: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        await trio.open_tcp_stream(short.host, short.port) as busy,
        await trio.open_tcp_stream(short.host, short.port) as idle,
    ):
        for stream in (busy, idle):
            for _ in range(2):
                await stream.send_all(post(BODY))
                assert (await stream.receive_some()).startswith(b"HTTP/1.1 200 ")
        with monkeypatch.context() as patch:
            commits = Commits(services.core.database, patch)
            await busy.send_all(post(BODY))
            await commits.begun.wait()
            services.core.life.stop()
            assert await idle.receive_some() == b""
            commits.go_on()
            assert (await busy.receive_some()).startswith(b"HTTP/1.1 200 ")
            assert await busy.receive_some() == b""
    assert accepted == [True, True, True]


@pytest.mark.parametrize("path", ["short", "long"])
async def test_while_connections_are_moved_each_answer_is_the_last_one_and_says_so(
    services: Services, short: Address, long: Address, path: str
) -> None:
    address = {"short": short, "long": long}[path]
    async with (
        await trio.open_tcp_stream(address.host, address.port) as reading,
        await trio.open_tcp_stream(address.host, address.port) as sending,
    ):
        for stream in (reading, sending):
            await stream.send_all(post(BODY))
            assert b"connection: close" not in (await stream.receive_some()).lower()
        services.core.life.move(1000.0)
        for stream, sent in ((reading, get(f"/devices/{KITCHEN}")), (sending, post(BODY))):
            await stream.send_all(sent)
            answer = await stream.receive_some()
            assert answer.startswith(b"HTTP/1.1 200 ")
            assert answer.lower().count(b"connection: close\r\n") == 1
            assert await stream.receive_some() == b""
        # Balancers ask on.
        async with connected(address) as client:
            assert b"connection: close" in (await client.ask(get(f"/devices/{KITCHEN}"))).lower()


async def test_a_connection_that_was_used_a_moment_ago_is_not_closed_without_an_answer(
    services: Services, short: Address, mock_clock: MockClock
) -> None:
    """The next request may be on its way."""
    async with (
        await trio.open_tcp_stream(short.host, short.port) as busy,
        await trio.open_tcp_stream(short.host, short.port) as idle,
    ):
        for stream in (busy, idle):
            await stream.send_all(post(BODY))
            assert (await stream.receive_some()).startswith(b"HTTP/1.1 200 ")
        await wait_all_tasks_blocked()
        mock_clock.jump(5)
        await wait_all_tasks_blocked()
        await busy.send_all(post(BODY))
        assert (await busy.receive_some()).startswith(b"HTTP/1.1 200 ")
        services.core.life.move(0.1)
        assert await idle.receive_some() == b""
        await busy.send_all(post(BODY))
        assert b"connection: close" in (await busy.receive_some()).lower()
        assert await busy.receive_some() == b""
