"""REST calls over loopback, beside a bare Quart application on Hypercorn in the same minute.

    python -m tests.benchmarks.rest [--seconds 5] [--rounds 3] [post] [show] [token] [action] [range] [last] [snapshots]

`post` and `action`: POST /messages and POST /actions with device tokens, durable before the answer. `show`: GET
/devices/{did} with a user token. `token`: PUT /devices/{did}/tokens, which makes a new one. `range`, `last`,
`snapshots`: the searches below /messages with device tokens, ten messages each; `post` must have run before. 20
connections, each with one request in flight. The bare application reads the body and answers the few bytes of `post`;
daemon and bare application take turns.
"""

import argparse
import multiprocessing
import select
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import trio
from hypercorn.config import Config
from hypercorn.trio import serve
from quart import Response, request
from quart_trio import QuartTrio

from tests.benchmarks.websocket import cpu_seconds
from tests.daemon import USER_TOKEN, device_id, device_token, running_daemon
from tests.free_port import free_port

_CONNECTIONS = 20
_ACTION = b'{"data":{"actions":[{"name":"setOn"}]}}'
_BODY = b'{"data":{"temperature":21.53,"intensity":48,"state":true,"text":"ok"}}'
_ANSWER = b'{"data":{"mid":"' + b"0" * 32 + b'"}}'


@dataclass(frozen=True, slots=True)
class Measured:
    rate: float
    cpu_microseconds: float


def _post(number: int, path: str = "/messages", body: bytes = _BODY) -> bytes:
    head = (
        f"POST /v1.1{path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: bearer {device_token(number)}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def _action(number: int) -> bytes:
    return _post(number, "/actions", _ACTION)


def _show(number: int) -> bytes:
    head = f"GET /v1.1/devices/{device_id(number)} HTTP/1.1\r\nHost: localhost\r\n"
    return f"{head}Authorization: bearer {USER_TOKEN}\r\n\r\n".encode()


def _token(number: int) -> bytes:
    head = f"PUT /v1.1/devices/{device_id(number)}/tokens HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n"
    return f"{head}Authorization: bearer {USER_TOKEN}\r\n\r\n".encode()


def _search(path: str) -> Callable[[int], bytes]:
    def request(number: int) -> bytes:
        head = f"GET /v1.1/messages{path.format(did=device_id(number))} HTTP/1.1\r\nHost: localhost\r\n"
        return f"{head}Authorization: bearer {device_token(number)}\r\n\r\n".encode()

    return request


REQUESTS = {
    "post": _post,
    "show": _show,
    "token": _token,
    "action": _action,
    "range": _search("?startDate=0&endDate=9999999999999&count=10"),
    "last": _search("/last?sdids={did}&count=10"),
    "snapshots": _search("/snapshots?sdids={did}"),
}


# --- The yardstick ---


async def _serve_bare(port: int) -> None:
    app = QuartTrio("bare")

    async def answer(**_names: str) -> Response:
        await request.get_data()
        return Response(_ANSWER, content_type="application/json")

    app.add_url_rule("/v1.1/<path:any>", "any", answer, methods=["GET", "POST"])
    config = Config()
    config.bind = [f"127.0.0.1:{port}"]
    config.accesslog = config.errorlog = None
    await serve(app, config)


def _run_bare(port: int) -> None:
    trio.run(_serve_bare, port)


@contextmanager
def bare_server() -> Iterator[tuple[int, int]]:
    """Its port and its process."""
    port = free_port()
    # A fork would count what this process holds as its own memory.
    process = multiprocessing.get_context("spawn").Process(target=_run_bare, args=(port,), daemon=True)
    process.start()
    assert process.pid is not None
    for _ in range(1_000):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.01)
    try:
        yield port, process.pid
    finally:
        process.terminate()
        process.join()


# --- What is measured ---


def measure(port: int, process: int, requests: Sequence[bytes], seconds: float) -> Measured:
    """Answers per second on as many connections as there are requests, and the server's processor time for each."""
    opened = [socket.create_connection(("127.0.0.1", port), timeout=10) for _ in requests]
    by_descriptor = dict(zip([one.fileno() for one in opened], zip(opened, requests, strict=True), strict=True))
    poll = select.epoll()
    for one, sent in by_descriptor.values():
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        poll.register(one.fileno(), select.EPOLLIN)
        one.sendall(sent)
    count, begin, used = 0, time.perf_counter(), cpu_seconds(process)
    while time.perf_counter() - begin < seconds:
        for descriptor, _ in poll.poll(0.1, 256):
            one, sent = by_descriptor[descriptor]
            received = one.recv(65_536)
            while not _is_whole(received):
                received += one.recv(65_536)
            assert received.startswith(b"HTTP/1.1 200"), received
            count += 1
            one.sendall(sent)
    rate = count / (time.perf_counter() - begin)
    used = cpu_seconds(process) - used
    poll.close()
    for one in opened:
        one.close()
    return Measured(rate, used / count * 1e6)


def _is_whole(received: bytes) -> bool:
    head, end, body = received.partition(b"\r\n\r\n")
    if not end:
        return False
    length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
    return len(body) >= int(length)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", nargs="*", choices=[*REQUESTS, []], help="everything by default")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        running_daemon(Path(folder), devices=_CONNECTIONS) as daemon,
        bare_server() as (bare_port, bare_process),
    ):
        assert daemon.process is not None
        for what in options.what or REQUESTS:
            requests = [REQUESTS[what](number) for number in range(_CONNECTIONS)]
            bare, ours = [], []
            for _ in range(options.rounds):
                bare.append(measure(bare_port, bare_process, requests, options.seconds))
                ours.append(measure(daemon.port("http"), daemon.process.pid, requests, options.seconds))
            pairs = list(zip(ours, bare, strict=True))
            rate = statistics.median(one.rate for one in ours)
            ratio = statistics.median(one.rate / other.rate for one, other in pairs)
            cpu = statistics.median(one.cpu_microseconds for one in ours)
            cpu_ratio = statistics.median(one.cpu_microseconds / other.cpu_microseconds for one, other in pairs)
            print(
                f"{what}   {rate:>7,.0f} calls/s   ratio {ratio:.2f}   {cpu:.0f} µs of the daemon each,"
                f" {cpu_ratio:.2f} of the bare application"
            )


if __name__ == "__main__":
    main()
