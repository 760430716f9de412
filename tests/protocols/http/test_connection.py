"""The life of an HTTP connection: the model test of the driver with this conversation (streams/test_connection.py)."""

import random
import re
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar, Final

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.services import Services
from config.settings import Address
from protocols.http.connection import HttpConnection
from protocols.http.server import serve_http
from protocols.streams.connection import MOVES, LifePhase, StreamConnection
from tests.factories import ADA_TOKEN, KITCHEN, KITCHEN_TOKEN, World
from tests.protocols.http.conftest import repeat_head

_slot: Any = StreamConnection.__dict__["state"]
_BODY: Final = b'{"data":{"state":true}}'


def _request(first: bytes, token: str, *lines: bytes, body: bytes = b"") -> bytes:
    authorization = f"Authorization: bearer {token}".encode()
    return b"\r\n".join([first + b" HTTP/1.1", b"Host: a", authorization, *lines, b"", body])


def _post(body: bytes) -> bytes:
    return _request(b"POST /v1.1/messages", KITCHEN_TOKEN, b"Content-Length: %d" % len(body), body=body)


_DEVICE: Final = b"GET /v1.1/devices/" + KITCHEN.encode()
#: Requests of the fast path and of the slow one, each with its status and whether it is the last of its connection.
REQUESTS: Final = (
    (_request(_DEVICE, ADA_TOKEN), b"200", False),
    (_request(_DEVICE + b"/", ADA_TOKEN), b"200", False),
    (b"\r\n" + _request(_DEVICE, "unknown"), b"401", False),
    (_post(_BODY), b"200", False),
    (_post(b"{"), b"400", False),
    (
        _request(
            b"POST /v1.1/messages",
            KITCHEN_TOKEN,
            b"Transfer-Encoding: chunked",
            body=b"%x\r\n%b\r\n0\r\n\r\n" % (len(_BODY), _BODY),
        ),
        b"200",
        False,
    ),
    (_request(b"GET /nothing", ADA_TOKEN), b"404", False),
    (_request(_DEVICE, ADA_TOKEN, b"Connection: close"), b"200", True),
    (b"nonsense\r\n\r\n", b"400", True),
    (_request(_DEVICE, ADA_TOKEN, b"X: " + b"x" * 17_000), b"431", True),
)
_OFTEN: Final = (6, 4, 1, 10, 2, 3, 1, 0.5, 0.2, 0.2)


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


async def _send_in_pieces(choices: random.Random, ours: trio.SocketStream, sent: bytes) -> None:
    at = 0
    with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        while at < len(sent):
            size = choices.choice((20, 100, 1_000, 20_000))
            await ours.send_all(sent[at : at + size])
            at += size
            if choices.random() < 0.1:
                await trio.sleep(choices.random())


async def _one_connection(choices: random.Random, address: Address) -> None:
    asked = choices.choices(REQUESTS, _OFTEN, k=choices.randrange(1, 9))
    expected = []
    for _, status, is_last in asked:
        expected.append(status)
        if is_last:
            break
    ours = await trio.open_tcp_stream(address.host, address.port)
    disturbance = choices.choice(("none", "none", "stop", "end", "close"))
    received = bytearray()

    def statuses() -> list[bytes]:
        return re.findall(rb"HTTP/1\.1 ([0-9]{3}) ", received)

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
                        await ours.send_eof()
                    case "close":
                        await ours.aclose()
        await ours.aclose()
        await Checked.closed.wait()
    answered = statuses()
    if disturbance == "end" and answered[-1:] == [b"400"]:
        answered.pop()  # a request that did not come to its end
    assert answered == expected[: len(answered)]
    if disturbance == "none":
        assert statuses() == expected


async def test_any_bytes_stops_slow_peers_and_errors(
    services: Services,
    world: World,
    nursery: trio.Nursery,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each request is answered once, in order; the phases follow each other; nothing stays behind."""
    monkeypatch.setattr("protocols.http.server.HttpConnection", Checked)
    monkeypatch.setattr(Checked, "made", [])
    address = await nursery.start(
        partial(serve_http, services, Address("127.0.0.1", 0), nursery, websocket=repeat_head)
    )
    with capture_logs() as logs:
        for seed in range(-5, 80):
            if seed == 0:  # by now the tasks of the listener run
                await wait_all_tasks_blocked(0.01)
                before = trio.lowlevel.current_statistics().tasks_living
            await _one_connection(random.Random(seed), address)  # noqa: S311
            assert Checked.made[-1].alarm_entry is None
            assert Checked.made[-1].hub.parked == 0
        await trio.sleep(10)
        await wait_all_tasks_blocked(0.01)
    assert trio.lowlevel.current_statistics().tasks_living <= before + 2  # the hub, and connections that linger
    assert len(Checked.made) == 85
    assert [entry for entry in logs if entry["log_level"] == "error"] == []
