"""A body stays with the peer until the call takes it and there is room (reference 21.6)."""

import gc
import json
import threading
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.accounts.tokens import Caller
from broker.errors import TooManyValues
from broker.limits.bodies import BodyStatistics
from broker.services import Services
from config.limits import (
    BODIES_BYTES,
    BODY_VALUES_MAX,
    BODY_WAIT_SECONDS,
    MAX_BODY_BYTES,
    MAX_FORM_BYTES,
    UNAUTHENTICATED_BODIES_BYTES,
    UNCOUNTED_BODY_BYTES,
)
from config.settings import Address
from protocols.http import dispatch, reading
from protocols.http.rest.nouns import NOUNS
from tests.factories import ADA_TOKEN
from tests.protocols.http.conftest import Raw, bearer, receive_all
from tests.rows import each_row

FORM = b"grant_type=client_credentials&padding=".ljust(10_000, b"x")


def post(path: str, length: int | None, *headers: str) -> bytes:
    """The head of a request; `length` is None for a body in chunks."""
    framing = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    lines = [f"POST {path} HTTP/1.1", "Host: a", "Connection: close", framing, *headers, "", ""]
    return "\r\n".join(lines).encode()


def used(services: Services) -> tuple[int, int]:
    """Bytes of all bodies, and of those of strangers."""
    statistics: BodyStatistics = services.limits.bodies.statistics()
    return statistics.bytes, statistics.unauthenticated_bytes


@pytest.fixture
async def stream(door: Address) -> AsyncIterator[trio.SocketStream]:
    async with await trio.open_tcp_stream(door.host, door.port) as opened:
        yield opened


async def test_a_form_takes_room_among_strangers_while_it_arrives(
    stream: trio.SocketStream, services: Services
) -> None:
    await stream.send_all(post("/accounts/token", len(FORM)) + FORM[:-1])
    await wait_all_tasks_blocked(0.01)
    assert used(services) == (len(FORM), len(FORM))
    await stream.send_all(FORM[-1:])
    assert (await receive_all(stream)).startswith(b"HTTP/1.1 400")
    await wait_all_tasks_blocked(0.01)
    assert used(services) == (0, 0)


async def test_a_caller_with_a_token_takes_no_room_from_strangers(
    stream: trio.SocketStream, services: Services
) -> None:
    sent = post("/v1.1/devices", 100_000, f"Authorization: bearer {ADA_TOKEN}") + b"x" * 99_999
    await stream.send_all(sent)
    await wait_all_tasks_blocked(0.01)
    assert used(services) == (100_000, 0)
    await stream.send_all(b"x")
    assert (await receive_all(stream)).startswith(b"HTTP/1.1 400")
    await wait_all_tasks_blocked(0.01)
    assert used(services) == (0, 0)


async def test_a_body_in_chunks_takes_what_it_may_have(stream: trio.SocketStream, services: Services) -> None:
    await stream.send_all(post("/accounts/token", None) + b"5\r\nabcde\r\n")
    await wait_all_tasks_blocked(0.01)
    assert used(services) == (MAX_FORM_BYTES, MAX_FORM_BYTES)
    await stream.send_all(b"0\r\n\r\n")
    assert (await receive_all(stream)).startswith(b"HTTP/1.1 4")
    await wait_all_tasks_blocked(0.01)
    assert used(services) == (0, 0)


async def test_a_short_body_is_not_counted(stream: trio.SocketStream, services: Services) -> None:
    await stream.send_all(post("/accounts/token", UNCOUNTED_BODY_BYTES) + b"x")
    await wait_all_tasks_blocked(0.01)
    assert used(services) == (0, 0)
    await stream.send_all(b"x" * (UNCOUNTED_BODY_BYTES - 1))
    assert (await receive_all(stream)).startswith(b"HTTP/1.1 4")


async def test_a_peer_that_goes_gives_its_room_back(stream: trio.SocketStream, services: Services) -> None:
    await stream.send_all(post("/accounts/token", len(FORM)) + FORM[:-1])
    await wait_all_tasks_blocked(0.01)
    assert used(services) == (len(FORM), len(FORM))
    await stream.aclose()
    await wait_all_tasks_blocked(0.05)
    assert used(services) == (0, 0)


async def test_a_body_that_nobody_reads_takes_no_room(stream: trio.SocketStream, services: Services) -> None:
    """Its head is refused: there is no token, or the path is unknown."""
    await stream.send_all(post("/v1.1/devices", MAX_BODY_BYTES) + b"x" * 500_000)
    await wait_all_tasks_blocked(0.01)
    assert used(services) == (0, 0)
    await stream.send_all(b"x" * (MAX_BODY_BYTES - 500_000))
    assert (await receive_all(stream)).startswith(b"HTTP/1.1 401")


async def test_after_a_refused_request_with_a_body_the_connection_is_read_on_or_closed(door: Address) -> None:
    """Its body came with its head: often nothing is left to read when the answer leaves, and the connection is kept."""
    path, body = f"/v1.1/users/{'f' * 32}/properties", b'{"properties":"' + b"0" * 4_100 + b'"}'
    head = post(path, len(body), f"Authorization: bearer {ADA_TOKEN}").replace(b"Connection: close\r\n", b"")
    for _ in range(10):
        async with await trio.open_tcp_stream(door.host, door.port) as stream:
            for _ in range(2):
                await stream.send_all(head + body)
                with trio.fail_after(5):
                    answer = await stream.receive_some()
                assert answer.startswith(b"HTTP/1.1 404"), answer[:200]
                if b"connection: close" in answer.lower():
                    break


@each_row("path", ["/accounts/token", "/accounts/device/code"])
@each_row("is_chunked", [False, True])
async def test_a_form_over_its_limit_is_413(raw: Raw, path: str, is_chunked: bool) -> None:
    body = b"x" * (MAX_FORM_BYTES + 1)
    if is_chunked:
        answer = await raw(post(path, None) + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
    else:
        answer = await raw(post(path, len(body)) + body)
    assert answer.startswith(b"HTTP/1.1 413")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"] == "invalid_request"


@each_row("path", ["/accounts/login", "/accounts/signup", "/accounts/go", "/accounts/checkToken"])
async def test_every_form_has_this_limit(raw: Raw, path: str) -> None:
    body = b"email=" + b"x" * MAX_FORM_BYTES
    assert (await raw(post(path, len(body)) + body)).startswith(b"HTTP/1.1 413")


async def test_without_room_strangers_are_told_to_come_back_and_others_are_served(
    door: Address, raw: Raw, services: Services, autojump_clock: MockClock
) -> None:
    share = UNAUTHENTICATED_BODIES_BYTES // 4
    held = [
        await services.limits.bodies.reserve(share, f"address {number}", is_authenticated=False) for number in range(4)
    ]
    started = trio.current_time()
    answer = await raw(post("/accounts/token", len(FORM)) + FORM)
    assert answer.startswith(b"HTTP/1.1 503")
    assert b"\r\nretry-after: 5\r\n" in answer.lower()
    assert trio.current_time() - started == pytest.approx(BODY_WAIT_SECONDS, abs=1)
    started = trio.current_time()
    body = b'{"name":"' + b"x" * 20_000 + b'"}'
    asked = post("/v1.1/devices", len(body), f"Authorization: bearer {ADA_TOKEN}") + body
    assert (await raw(asked)).startswith(b"HTTP/1.1 400")
    assert trio.current_time() - started < 1
    services.limits.bodies.release(held[0])
    assert (await raw(post("/accounts/token", len(FORM)) + FORM)).startswith(b"HTTP/1.1 400")


async def test_without_room_callers_are_told_to_come_back(
    raw: Raw, services: Services, autojump_clock: MockClock
) -> None:
    for number in range(4):
        await services.limits.bodies.reserve(BODIES_BYTES // 4, f"caller {number}", is_authenticated=True)
    asked = post("/v1.1/devices", 20_000, f"Authorization: bearer {ADA_TOKEN}") + b"x" * 20_000
    answer = await raw(asked)
    assert answer.startswith(b"HTTP/1.1 503")
    assert b"\r\nretry-after: 5\r\n" in answer.lower()


@each_row("token", [ADA_TOKEN, "unknown"])
async def test_a_body_that_is_malformed_behind_its_head_gets_one_answer(door: Address, token: str) -> None:
    """Both the task that reads and the one that answers end the connection, in any order."""
    head = post("/v1.1/devices", None, f"Authorization: bearer {token}")
    async with await trio.open_tcp_stream(door.host, door.port) as stream:
        await stream.send_all(head + b"5\r\n{    \r\n")
        await wait_all_tasks_blocked()
        await stream.send_all(b"nonsense\r\n")
        received = b""
        while more := await stream.receive_some():
            received += more
    assert received.count(b"HTTP/1.1 4") == 1


async def test_a_long_body_is_read_beside_the_loop(
    api: httpx.AsyncClient, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes up to 0.1 s, in which nobody else would be served."""
    threads: list[bool] = []
    members = reading.members

    def noting(body: bytes, kind: type[Any], caller: Caller | None = None) -> Any:
        threads.append(threading.current_thread() is threading.main_thread())
        return members(body, kind, caller)

    monkeypatch.setattr(dispatch, "members", noting)
    for padding, reads_on_loop in ((10, True), (100_000, False)):
        answer = await api.post("/devices", json={"nothing": "x" * padding}, headers=bearer(ADA_TOKEN))
        assert answer.status_code == 400
        assert threads.pop() is reads_on_loop


#: In the order of what is looked at: the last one is refused in the transaction that would make a device.
LONG_AND_REFUSED = [
    (b'{"name":"' + b"x" * 100_000, 400),
    (b'{"name":"' + b"x" * 100_000 + b'"}', 400),
    (b'{"nothing":"' + b"x" * 100_000 + b'","a":1e400}', 400),
    (b'{"nothing":"' + b"x" * 100_000 + b'","a":[' + b"1," * BODY_VALUES_MAX + b"1]}", 413),
    (b'{"nothing":"' + b"x" * 100_000 + b'","dtid":"dt' + b"0" * 32 + b'","name":"A","uid":"' + b"0" * 32 + b'"}', 404),
]


@each_row(("body", "status"), LONG_AND_REFUSED)
async def test_a_long_body_does_not_wait_for_the_garbage_collector(raw: Raw, body: bytes, status: int) -> None:
    """A refusal holds frames, frames hold what they read, and the collector comes after 50,000 containers."""
    sent = post("/v1.1/devices", len(body), f"Authorization: bearer {ADA_TOKEN}") + body
    gc.collect()
    gc.freeze()  # what is there before needs no search, which takes a fifth of a second late in a run
    for debug in (0, gc.DEBUG_SAVEALL):  # the first request of a kind fills caches
        gc.collect()
        gc.set_debug(debug)
        try:
            answer = await raw(sent)
            assert answer.startswith(f"HTTP/1.1 {status}".encode()), answer[:500]
            await wait_all_tasks_blocked(0.01)
            gc.collect()
            held = [one for one in gc.garbage for part in gc.get_referents(one) if _is_long(part)]
            assert not held, [type(one) for one in held]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()


def _is_long(value: object) -> bool:
    return isinstance(value, bytes | bytearray | str) and len(value) >= 100_000


async def test_no_call_takes_a_body_whose_values_would_stop_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decoder makes all values in one call, during which nothing else runs, also in a thread."""
    many = b'{"a":[' + b"[]," * BODY_VALUES_MAX + b"1]}"

    async def long_one(*, limit: int) -> bytes:
        return many if len(many) <= limit else b"{}"

    monkeypatch.setattr(dispatch, "read_body", long_one)
    taken = [
        call
        for noun in NOUNS
        for call in noun.declared()
        if call.body is not None and call.reads_json and call.body_limit >= len(many)
    ]
    assert len(taken) > 40
    assert {"/rules", "/rules/{ruleId}"} <= {call.path for call in taken}  # their handlers take bytes
    for call in taken:
        with pytest.raises(TooManyValues, match="more than 32768 values"):
            await dispatch._Body(call).read(None)
