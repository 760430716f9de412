"""The life of an HTTP connection: the model test of the driver with this conversation (streams/test_connection.py)."""

import random
import re
import ssl
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.devices.registry import Device
from broker.services import Services
from config.settings import Address
from protocols.http.connection import HttpConnection
from protocols.http.server import serve_http
from protocols.streams.connection import MOVES, LifePhase, StreamConnection
from storage.keys import Milliseconds
from tests.factories import ADA_TOKEN, KITCHEN, KITCHEN_TOKEN, World
from tests.protocols.http.certificates import contexts
from tests.rows import each_row

pytestmark = pytest.mark.slow


_slot: Any = StreamConnection.__dict__["state"]
_BODY: Final = b'{"data":{"state":true}}'
#: A device and a value whose handlers raise what no handler should.
_RAISING: Final = "d" * 32
_RAISING_BODY: Final = b'{"data":{"state":true,"bug":1}}'
_UPGRADE: Final = b"websocket"


def _request(first: bytes, token: str, *lines: bytes, body: bytes = b"") -> bytes:
    authorization = f"Authorization: bearer {token}".encode()
    return b"\r\n".join([first + b" HTTP/1.1", b"Host: a", authorization, *lines, b"", body])


def _post(body: bytes) -> bytes:
    return _request(b"POST /v1.1/messages", KITCHEN_TOKEN, b"Content-Length: %d" % len(body), body=body)


def _chunked(body: bytes) -> bytes:
    chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    return _request(b"POST /v1.1/messages", KITCHEN_TOKEN, b"Transfer-Encoding: chunked", body=chunks)


_DEVICE: Final = b"GET /v1.1/devices/" + KITCHEN.encode()
_BROKEN: Final = b"GET /v1.1/devices/" + _RAISING.encode()
#: Requests of the fast path and of the slow one, each with its status and whether it is the last of its connection.
REQUESTS: Final = (
    (_request(_DEVICE, ADA_TOKEN), b"200", False),
    (_request(_DEVICE + b"/", ADA_TOKEN), b"200", False),
    (b"\r\n" + _request(_DEVICE, "unknown"), b"401", False),
    (_post(_BODY), b"200", False),
    (_post(b"{"), b"400", False),
    (_chunked(_BODY), b"200", False),
    (_request(b"GET /nothing", ADA_TOKEN), b"404", False),
    (_request(_DEVICE, ADA_TOKEN, b"Connection: close"), b"200", True),
    (b"nonsense\r\n\r\n", b"400", True),
    (_request(_DEVICE, ADA_TOKEN, b"X: " + b"x" * 17_000), b"431", True),
    (_request(_BROKEN, ADA_TOKEN), b"500", False),
    (_request(_BROKEN + b"/", ADA_TOKEN), b"500", False),
    (_post(_RAISING_BODY), b"500", False),
    (_chunked(_RAISING_BODY), b"500", False),
    (_request(b"GET /v1.1/live", ADA_TOKEN, b"Connection: Upgrade", b"Upgrade: websocket"), _UPGRADE, True),
)
_OFTEN: Final = (6, 4, 1, 10, 2, 3, 1, 0.5, 0.2, 0.2, 0.7, 0.5, 1, 0.5, 0.5)


class Checked(HttpConnection):
    """Refuses phases that may not follow each other."""

    made: ClassVar["list[Checked]"] = []
    closed: ClassVar[trio.Event] = trio.Event()

    def begin(self) -> None:
        self.made.append(self)
        Checked.closed = trio.Event()

    def leave(self) -> None:
        assert self.state is LifePhase.CLOSED
        self.closed.set()

    @property
    def state(self) -> LifePhase:
        phase: LifePhase = _slot.__get__(self)
        return phase

    @state.setter
    def state(self, following: LifePhase) -> None:
        assert not hasattr(self, "state") or following in MOVES[self.state]
        _slot.__set__(self, following)


async def _take_over(head: bytes, early: bytes, stream: trio.abc.Stream) -> None:
    """Stands for the WebSocket server: says that it has the connection, and reads what is left."""
    assert head.startswith(b"GET /v1.1/live HTTP/1.1\r\n")
    await stream.send_all(_UPGRADE)
    with suppress(trio.BrokenResourceError):
        while await stream.receive_some():
            pass


def _break_handlers(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    find, submit = services.devices.registry.find, services.messages.ingest.submit

    async def finding(device_id: str) -> Device:
        if device_id == _RAISING:
            raise KeyError("a bug")
        return await find(device_id)

    def submitting(device: Device, payload: bytes, ts: Milliseconds | None, dropped: Any) -> Any:
        if b"bug" in payload:
            raise KeyError("a bug")
        return submit(device, payload, ts, dropped)

    monkeypatch.setattr(services.devices.registry, "find", finding)
    monkeypatch.setattr(services.messages.ingest, "submit", submitting)


async def _send_in_pieces(choices: random.Random, ours: trio.abc.Stream, sent: bytes) -> None:
    at = 0
    with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        while at < len(sent):
            size = choices.choice((20, 100, 1_000, 20_000))
            await ours.send_all(sent[at : at + size])
            at += size
            if choices.random() < 0.1:
                await trio.sleep(choices.random())


async def _one_connection(choices: random.Random, address: Address, tls: ssl.SSLContext | None) -> list[bytes]:
    """Returns the statuses of the answers that have come."""
    asked = choices.choices(REQUESTS, _OFTEN, k=choices.randrange(1, 9))
    expected = []
    for _, status, is_last in asked:
        expected.append(status)
        if is_last:
            break
    plain = await trio.open_tcp_stream(address.host, address.port)
    ours = plain if tls is None else trio.SSLStream(plain, tls, server_hostname="127.0.0.1")
    disturbance = choices.choice(("none", "none", "stop", "end", "close"))
    received = bytearray()

    def statuses() -> list[bytes]:
        found = re.findall(rb"HTTP/1\.1 ([0-9]{3}) |(websocket)", received)
        return [status or upgrade for status, upgrade in found]

    async def read() -> None:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while len(statuses()) < len(expected) and (more := await ours.receive_some(choices.randrange(1, 2_000))):
                received.extend(more)
                if choices.random() < 0.1:
                    await trio.sleep(choices.random() * 3)
        tasks.cancel_scope.cancel()

    with trio.fail_after(300):
        async with trio.open_nursery() as tasks:
            tasks.start_soon(read)
            tasks.start_soon(_send_in_pieces, choices, ours, b"".join(request for request, _, _ in asked))
            if disturbance != "none":
                await trio.sleep(choices.random())
                served = Checked.made[-1]
                match disturbance:
                    case "stop":
                        served.stop()
                    case "end":
                        await plain.send_eof()
                    case "close":
                        await ours.aclose()
        with suppress(trio.ClosedResourceError):
            await ours.aclose()
        await Checked.closed.wait()
    answered = statuses()
    if disturbance == "end" and answered[-1:] == [b"400"]:
        answered.pop()  # a request that did not come to its end
    assert answered == expected[: len(answered)]
    if disturbance == "none":
        assert statuses() == expected
    return answered


@each_row("is_encrypted", [False, True], ids=["plain", "TLS"])
async def test_any_bytes_stops_slow_peers_and_errors(
    services: Services,
    world: World,
    nursery: trio.Nursery,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    is_encrypted: bool,
) -> None:
    """Each request is answered once, in order; the phases follow each other; nothing stays behind."""
    monkeypatch.setattr("protocols.http.server.HttpConnection", Checked)
    monkeypatch.setattr(Checked, "made", [])
    _break_handlers(services, monkeypatch)
    here, there = contexts(tmp_path) if is_encrypted else (None, None)
    serve = partial(serve_http, services, Address("127.0.0.1", 0), nursery, websocket=_take_over, ssl_context=here)
    address, answered = await nursery.start(serve), Counter[bytes]()
    with capture_logs() as logs:
        for seed in range(-5, 80):
            if seed == 0:  # by now the tasks of the listener run
                await wait_all_tasks_blocked(0.01)
                before = trio.lowlevel.current_statistics().tasks_living
            answered.update(await _one_connection(random.Random(seed), address, there))  # noqa: S311
            assert Checked.made[-1].alarm_entry is None
            assert Checked.made[-1].hub.parked == 0
        await trio.sleep(10)
        await wait_all_tasks_blocked(0.01)
    assert trio.lowlevel.current_statistics().tasks_living <= before + 2  # the hub, and connections that linger
    assert len(Checked.made) == 85
    errors = [entry for entry in logs if entry["log_level"] == "error"]
    assert {repr(entry["exc_info"]) for entry in errors} == {"KeyError('a bug')"}
    assert len(errors) >= answered[b"500"]  # a peer that has gone hears of none
    assert {status for _, status, _ in REQUESTS} == set(answered)
