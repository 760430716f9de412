"""The ways out to upstreams: TLS with a CA file, names that cannot be resolved, brokers of MQTT 5 and 3.1.1."""

import asyncio
import gc
import socket
import subprocess
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import trio
from amqtt.broker import Broker

from broker.forwarding.port import BrokerMessage, UpstreamError
from config.settings import Forward
from protocols.outbound.forwarding import OutboundUpstreams
from tests.free_port import free_port
from tests.programs import require_program
from tests.protocols.http.certificates import contexts
from tests.served import served

PATIENCE_SECONDS = 30
MQTTS = """\
listener {port} 127.0.0.1
certfile {folder}/cert.pem
keyfile {folder}/key.pem
allow_anonymous true
user root
"""


@pytest.fixture
def token(tmp_path: Path) -> str:
    file = tmp_path / "token"
    file.write_text("secret\n")
    return str(file)


class Answers(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        asked = self.rfile.read(int(self.headers["content-length"]))
        body = b"%s %s" % (self.headers["authorization"].encode(), asked)
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


async def test_an_upstream_with_a_certificate_of_its_own_ca(tmp_path: Path, token: str) -> None:
    server_context, _ = contexts(tmp_path)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    server.handle_error = lambda *_: None  # type: ignore[method-assign] # a client that does not trust it
    server.socket = server_context.wrap_socket(server.socket, server_side=True)
    ca_file, to = str(tmp_path / "cert.pem"), f"https://127.0.0.1:{server.server_port}"
    entry = Forward("centre", to, token_file=token, ca_file=ca_file)
    with served(server):
        upstreams = OutboundUpstreams("")
        answer = await upstreams.post(entry, "/v1.1/forwarded", b"{}", seconds=PATIENCE_SECONDS)
        assert (answer.status, answer.body) == (200, b"Bearer secret {}")
        with pytest.raises(UpstreamError, match=r"(?i)certificate"):
            await upstreams.post(Forward("b", to, token_file=token), "/", b"{}", seconds=PATIENCE_SECONDS)
        with pytest.raises(UpstreamError, match="ca_file cannot be used"):
            await upstreams.post(
                Forward("c", to, token_file=token, ca_file=token), "/", b"{}", seconds=PATIENCE_SECONDS
            )
        with pytest.raises(UpstreamError, match="token_file cannot be read"):
            await upstreams.post(Forward("d", to, token_file=token + "x"), "/", b"{}", seconds=PATIENCE_SECONDS)
        of_all = OutboundUpstreams(ca_file)
        assert (await of_all.post(Forward("e", to, token_file=token), "/", b"", seconds=PATIENCE_SECONDS)).status == 200
        for one in (upstreams, of_all):
            await one.close_idle()


async def test_a_name_that_cannot_be_resolved(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_name_server(*_: object, **__: object) -> Any:
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", no_name_server)
    upstreams = OutboundUpstreams("")
    with pytest.raises(UpstreamError, match=r"gives no usable answer: .*resolve"):
        await upstreams.post(Forward("a", "https://centre.example", token_file=token), "/", b"", seconds=5)
    with pytest.raises(UpstreamError, match="The name of the broker cannot be resolved"):
        async with upstreams.broker(Forward("b", "mqtts://broker.example"), "c", "", ignored):
            pass


async def test_an_upstream_that_does_not_run(token: str) -> None:
    entry = Forward("a", f"http://127.0.0.1:{free_port()}", token_file=token)
    with pytest.raises(UpstreamError, match=r"^The upstream cannot be reached: connection refused\.$"):
        await OutboundUpstreams("").post(entry, "/", b"", seconds=PATIENCE_SECONDS)


async def test_a_broker_that_does_not_run() -> None:
    with pytest.raises(UpstreamError, match=r"^No connection to the broker: connection refused\.$"):
        async with OutboundUpstreams("").broker(Forward("b", f"mqtt://127.0.0.1:{free_port()}"), "c", "", ignored):
            pass


async def ignored(_topic: str, _payload: bytes) -> None:
    pass


async def converse(entry: Forward, port: int, *options: str) -> list[tuple[str, bytes]]:
    """Publish three messages, and take a command that mosquitto's client sends; return the commands and the messages
    that it hears."""
    came, heard = trio.Event(), list[tuple[str, bytes]]()

    async def command(topic: str, payload: bytes) -> None:
        heard.append((topic, payload))
        came.set()

    where = ("-h", "127.0.0.1", "-p", str(port), *options)
    listening = [
        require_program("mosquitto_sub"),
        *where,
        "-q",
        "1",
        "-t",
        "trunkline/+/messages",
        "-C",
        "3",
        "-d",
        "-v",
    ]
    async with trio.open_nursery() as nursery:
        process = await nursery.start(
            partial(trio.run_process, ["stdbuf", "-oL", *listening], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
        )
        said = b""
        while b"Subscribed" not in said:
            said += await process.stdout.receive_some()
        async with OutboundUpstreams("").broker(entry, "trunkline-0-broker", "trunkline/+/actions", command) as client:
            properties = (("mid", "0" * 32), ("ts", "1"))
            await client.publish(
                [BrokerMessage("trunkline/d/messages", b"%d" % number, properties) for number in range(3)]
            )
            sends = [require_program("mosquitto_pub"), *where, "-q", "1", "-t", "trunkline/d/actions", "-m", "{}"]
            await trio.run_process(sends)
            await came.wait()
        async for part in process.stdout:
            said += part
        lines = [line.split(b" ", 1) for line in said.splitlines() if line.startswith(b"trunkline/")]
        heard += [(topic.decode(), payload) for topic, payload in lines]
    return heard


EXPECTED = {("trunkline/d/actions", b"{}"), *(("trunkline/d/messages", b"%d" % number) for number in range(3))}


@contextmanager
def mosquitto_with_tls(folder: Path, port: int) -> Iterator[None]:
    contexts(folder)
    config = folder / "mosquitto.conf"
    config.write_text(MQTTS.format(port=port, folder=folder))
    command = [require_program("mosquitto"), "-c", str(config)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait(timeout=PATIENCE_SECONDS)


async def test_a_broker_behind_tls_gives_commands(tmp_path: Path) -> None:
    port, ca_file = free_port(), str(tmp_path / "cert.pem")
    with mosquitto_with_tls(tmp_path, port), trio.fail_after(PATIENCE_SECONDS):
        await listens(port)
        entry = Forward("broker", f"mqtts://127.0.0.1:{port}", ca_file=ca_file)
        assert set(await converse(entry, port, "--cafile", ca_file, "--insecure")) == EXPECTED
        with pytest.raises(UpstreamError, match=r"No TLS with the broker: .*certificate"):
            async with OutboundUpstreams("").broker(Forward("b", entry.to), "c", "", ignored):
                pass


async def listens(port: int) -> None:
    with trio.fail_after(PATIENCE_SECONDS):
        while True:
            try:
                stream = await trio.open_tcp_stream("127.0.0.1", port)
            except OSError:
                await trio.lowlevel.checkpoint()
            else:
                await stream.aclose()
                return


@contextmanager
def amqtt_broker(port: int) -> Iterator[None]:
    """amqtt's broker, which speaks MQTT 3.1.1 alone, on a loop of its own in a thread."""
    is_up, end = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        config = {
            "listeners": {"default": {"type": "tcp", "bind": f"127.0.0.1:{port}"}},
            "plugins": {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}},
        }
        broker = Broker(config)
        await broker.start()
        is_up.set()
        await end.wait()
        await broker.shutdown()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        assert is_up.wait(PATIENCE_SECONDS)
        yield
    finally:
        loop.call_soon_threadsafe(end.set)
        thread.join(PATIENCE_SECONDS)
        with warnings.catch_warnings():  # it leaves connections open, of which Python 3.11.2 complains
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()
        loop.close()


async def test_a_broker_of_3_1_1_gives_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes the CONNECT of version 5 for a longer one, and waits for the rest."""
    monkeypatch.setattr("protocols.outbound.mqtt._ANSWER_OF_5_SECONDS", 0.5)
    port = free_port()
    with amqtt_broker(port), trio.fail_after(PATIENCE_SECONDS):
        entry = Forward("broker", f"mqtt://127.0.0.1:{port}")
        assert set(await converse(entry, port, "-V", "mqttv311")) == EXPECTED
