"""The examples in config/proxies, with the programs that they are for: limits by address mean the client."""

import os
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import pytest
import trio
from trio_websocket import open_websocket_url

from tests.daemon import USER_TOKEN, Daemon, device_id, device_token, running_daemon
from tests.free_port import free_port
from tests.programs import require_program
from tests.protocols.http.certificates import contexts
from tests.protocols.mqtt.peers import ACCEPTED
from tests.protocols.mqtt.peers import connect as mqtt_connect

EXAMPLES = Path(__file__).parent.parent.parent / "config" / "proxies"
PATIENCE_SECONDS = 60
ADA, BOB = "127.0.0.2", "127.0.0.3"  # the proxy connects from 127.0.0.1
FORGED = "X-Forwarded-For: 6.6.6.6\r\nForwarded: for=6.6.6.6;proto=https\r\n"

Connect = Callable[[str], socket.socket]


def adapted(name: str, changes: Mapping[str, str]) -> str:
    """An example, with addresses and files of the test in place of its own."""
    text = (EXAMPLES / name).read_text(encoding="utf-8")
    for before, after in changes.items():
        assert before in text
        text = text.replace(before, after)
    return text


@contextmanager
def running(command: list[str], ports: list[int], folder: Path) -> Iterator[None]:
    """The proxy, once it listens on its ports."""
    with (folder / "proxy.log").open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, cwd=folder, env=os.environ | {"HOME": str(folder)}
        )
        try:
            for port in ports:
                _wait_for(port, process, folder)
            yield
        finally:
            process.terminate()
            process.wait(timeout=PATIENCE_SECONDS)


def _wait_for(port: int, process: "subprocess.Popen[bytes]", folder: Path) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end and process.poll() is None:
        with closing(socket.socket()) as one:
            if one.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    pytest.fail((folder / "proxy.log").read_text(encoding="utf-8"))


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Daemon]]:
    """A daemon behind a proxy on 127.0.0.1, which takes two calls a minute from one address."""
    with ExitStack() as stack:

        def begin(**variables: str) -> Daemon:
            contexts(tmp_path)
            variables |= {"http_trusted_proxies": '["127.0.0.1"]', "limits_calls_per_address": "2"}
            variables |= {"tls_certificate": f"{tmp_path}/cert.pem", "tls_key": f"{tmp_path}/key.pem"}
            for name, value in (variables | {"limits_rate_limits": "on"}).items():
                monkeypatch.setenv(f"TRUNKLINE_{name.upper()}", value)
            return stack.enter_context(running_daemon(tmp_path / "daemon", devices=1))

        yield begin


def connecting(port: int, context: ssl.SSLContext | None = None) -> Connect:
    def connect(source: str) -> socket.socket:
        one = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS, source_address=(source, 0))
        return one if context is None else context.wrap_socket(one, server_hostname="127.0.0.1")

    return connect


def statuses(connect: Connect, sources: list[str]) -> list[int]:
    """Of calls that count against the addresses of their clients, which try to look like another one."""
    found = []
    for source in sources:
        with closing(connect(source)) as client:
            client.sendall(
                f"OPTIONS /v1.1/users/self HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{FORGED}\r\n".encode()
            )
            found.append(int(client.recv(4096).split()[1]))
    return found


def trusting(folder: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(folder / "cert.pem"))


async def list_devices(url: str, context: ssl.SSLContext | None = None) -> None:
    """On a WebSocket, which the proxy must let through."""
    with trio.fail_after(PATIENCE_SECONDS):
        path = f"/v1.1/websocket?Authorization=bearer+{USER_TOKEN}"
        async with open_websocket_url(url + path, ssl_context=context) as one:
            await one.send_message('{"type":"list","cid":"1"}')
            assert "cid" in str(await one.get_message())


async def test_nginx(start: Callable[..., Daemon], tmp_path: Path) -> None:
    program, port = require_program("nginx"), free_port()
    daemon = start()
    example = adapted(
        "nginx.conf",
        {
            "listen 443 ssl": f"listen 127.0.0.1:{port} ssl",
            "server 127.0.0.1:8080": f"server {daemon.addresses['http']}",
            "/etc/trunkline/": f"{tmp_path}/",
        },
    )
    spools = "".join(
        f"{kind}_temp_path {tmp_path}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    around = f"daemon off;\nerror_log stderr;\npid {tmp_path}/pid;\nevents {{}}\nhttp {{\naccess_log off;\n"
    (tmp_path / "whole.conf").write_text(f"{around}{spools}{example}}}\n", encoding="utf-8")
    with running([program, "-p", str(tmp_path), "-c", str(tmp_path / "whole.conf")], [port], tmp_path):
        context = trusting(tmp_path)
        assert statuses(connecting(port, context), [ADA, ADA, ADA, BOB]) == [200, 200, 429, 200]
        await list_devices(f"wss://127.0.0.1:{port}", context)


async def test_caddy(start: Callable[..., Daemon], tmp_path: Path) -> None:
    program, port = require_program("caddy"), free_port()
    daemon = start()
    example = adapted(
        "Caddyfile",
        {"gateway.example.org {": f"http://:{port} {{", "127.0.0.1:8080": daemon.addresses["http"]},
    )
    (tmp_path / "Caddyfile").write_text(f"{{\nadmin off\n}}\n{example}", encoding="utf-8")
    with running([program, "run", "--config", "Caddyfile", "--adapter", "caddyfile"], [port], tmp_path):
        assert statuses(connecting(port), [ADA, ADA, ADA, BOB]) == [200, 200, 429, 200]
        await list_devices(f"ws://127.0.0.1:{port}")


async def test_haproxy(start: Callable[..., Daemon], tmp_path: Path) -> None:
    """TLS ends at the daemon, and MQTT goes through, too."""
    program, port, mqtt_port = require_program("haproxy"), free_port(), free_port()
    daemon = start(
        http_tls_bind="127.0.0.1:0",
        mqtt_tls_bind="127.0.0.1:0",
        http_proxy_protocol="required",
        limits_unauthenticated_connections_per_address="2",
    )
    example = adapted(
        "haproxy.cfg",
        {
            "bind :443": f"bind 127.0.0.1:{port}",
            "bind :8883": f"bind 127.0.0.1:{mqtt_port}",
            "127.0.0.1:8443": daemon.addresses["https"],
            "127.0.0.1:8883": daemon.addresses["mqtts"],
            "maxconn 20000": "maxconn 100",
        },
    )
    (tmp_path / "haproxy.cfg").write_text(example, encoding="utf-8")
    with running([program, "-db", "-f", "haproxy.cfg"], [port, mqtt_port], tmp_path):
        context = trusting(tmp_path)
        assert statuses(connecting(port, context), [ADA, ADA, ADA, BOB]) == [200, 200, 429, 200]
        await list_devices(f"wss://127.0.0.1:{port}", context)
        with closing(connecting(mqtt_port, context)(ADA)) as device:
            device.sendall(mqtt_connect(device_id(0), device_token(0)))
            assert device.recv(100) == ACCEPTED
        # A client that goes around the proxy cannot speak for others, nor at all.
        with closing(socket.create_connection(daemon.host_port("https"), source_address=(BOB, 0))) as around:
            around.sendall(b"PROXY TCP4 6.6.6.6 127.0.0.1 5000 443\r\n")
            with suppress(ConnectionResetError):
                assert around.recv(100) == b""
