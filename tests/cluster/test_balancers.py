"""The examples in config/proxies for several nodes, with the programs that they are for, before two nodes."""

import json
import re
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

import httpx
import pytest

from tests.cluster.node import PATIENCE_SECONDS, Node, running_nodes, wait_until
from tests.daemon import USER_TOKEN, bearer, device_id, device_token
from tests.e2e.test_proxies import ADA, BOB, FORGED, Connect, adapted, connecting, list_devices, running, trusting
from tests.free_port import free_port
from tests.programs import require_dtls, require_program, skip_without
from tests.properties import in_ci
from tests.protocols.http.certificates import contexts
from tests.protocols.mqtt.peers import ACCEPTED
from tests.protocols.mqtt.peers import connect as mqtt_connect

pytestmark = pytest.mark.processes

_MODULE: Final = Path("/usr/lib/nginx/modules/ngx_stream_module.so")
_SETTINGS: Final = {
    "HTTP_TRUSTED_PROXIES": '["127.0.0.1"]',
    "HTTP_TLS_BIND": "127.0.0.1:0",
    "MQTT_TLS_BIND": "127.0.0.1:0",
    "COAP_DTLS_BIND": "127.0.0.1:0",
    "CLUSTER_DRAIN_NOTICE_SECONDS": "2.5",
    "CLUSTER_DRAIN_SECONDS": "1",
}


@pytest.fixture(scope="module")
def patch() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as found:
        yield found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Has the certificate."""
    found = tmp_path_factory.mktemp("balancers")
    contexts(found)
    return found


@pytest.fixture(scope="module")
def nodes(folder: Path, patch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Node]]:
    files = {"TLS_CERTIFICATE": f"{folder}/cert.pem", "TLS_KEY": f"{folder}/key.pem"}
    for name, value in (_SETTINGS | files).items():
        patch.setenv(f"TRUNKLINE_{name}", value)
    with running_nodes(tmp_path_factory.mktemp("cluster"), "a", "b") as found:
        yield found


def names_the_client(nodes: list[Node], connect: Connect) -> bool:
    """Whether a node has the address of a client that says that it is somebody else."""
    with closing(connect(ADA)) as client:
        head = f"GET /v1.1/users/self HTTP/1.1\r\nHost: a\r\nConnection: close\r\nAuthorization: bearer {'9' * 32}\r\n"
        client.sendall(f"{head}{FORGED}\r\n".encode())
        assert client.recv(4096).split()[1] == b"401"
    logs = "".join(node.log() for node in nodes)
    return f"peer={ADA} " in logs and "6.6.6.6" not in logs


def send(base: str, number: int, context: ssl.SSLContext | bool = True) -> int:
    body = {"sdid": device_id(number), "type": "message", "data": {"intensity": 1}}
    headers = {"Authorization": f"bearer {device_token(number)}"}
    return httpx.post(f"{base}/v1.1/messages", json=body, headers=headers, verify=context, timeout=30).status_code


@pytest.fixture(scope="module")
def nginx(nodes: list[Node], folder: Path) -> Iterator[tuple[int, int, int, int]]:
    """The ports of HTTPS, MQTT, CoAP, and CoAP with DTLS at nginx."""
    program = require_program("nginx")
    if not _MODULE.exists():
        skip_without("libnginx-mod-stream")
    port, mqtt_port, coap_port, coaps_port = free_port(), free_port(), free_port(), free_port()
    changes = {
        "include /etc/nginx/modules-enabled/*.conf;": f"load_module {_MODULE};",
        "worker_rlimit_nofile 40000;": f"daemon off;\nerror_log stderr;\npid {folder}/pid;",
        "worker_connections 20000;": "worker_connections 200;",
        "listen 443 ssl": f"listen 127.0.0.1:{port} ssl",
        "listen 8883": f"listen 127.0.0.1:{mqtt_port}",
        "listen 5683 udp": f"listen 127.0.0.1:{coap_port} udp",
        "listen 5684 udp": f"listen 127.0.0.1:{coaps_port} udp",
        "listen 5686 udp": f"listen 127.0.0.1:{free_port()} udp",
        "/etc/trunkline/": f"{folder}/",
        "    map $http_upgrade": "".join(
            f"    {kind}_temp_path {folder}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        + "    access_log off;\n    map $http_upgrade",
    }
    for at, node in enumerate(nodes, 11):
        changes |= {
            f"192.0.2.{at}:8080": f"127.0.0.1:{node.http}",
            f"192.0.2.{at}:8883": node.daemon.addresses["mqtts"],
            f"192.0.2.{at}:5683": f"127.0.0.1:{node.coap}",
            f"192.0.2.{at}:5684": node.daemon.addresses["coaps"],
        }
    text = adapted("nginx-several.conf", changes)
    (folder / "nginx.conf").write_text(re.sub(r"\n +server 192\.0\.2\.13.*", "", text), encoding="utf-8")
    with running([program, "-p", str(folder), "-c", str(folder / "nginx.conf")], [port, mqtt_port], folder):
        yield port, mqtt_port, coap_port, coaps_port


@pytest.fixture(scope="module")
def caddy(nodes: list[Node], folder: Path) -> Iterator[int]:
    """Its port."""
    program, port, inside = require_program("caddy"), free_port(), folder / "caddy"
    inside.mkdir()
    changes = {"gateway.example.org {": f"http://:{port} {{", " 192.0.2.13:8080": ""}
    changes |= {f"192.0.2.{at}:8080": f"127.0.0.1:{node.http}" for at, node in enumerate(nodes, 11)}
    text = adapted("Caddyfile-several", changes)
    (inside / "Caddyfile").write_text(f"{{\nadmin off\n}}\n{text}", encoding="utf-8")
    with running([program, "run", "--config", "Caddyfile", "--adapter", "caddyfile"], [port], inside):
        wait_until(lambda: send(f"http://127.0.0.1:{port}", 0) == 200, "Caddy has asked the nodes")
        yield port


@in_ci
async def test_nginx_serves_http_and_websockets_of_any_node(
    nginx: tuple[int, int, int, int], nodes: list[Node], folder: Path
) -> None:
    port, context = nginx[0], trusting(folder)
    assert names_the_client(nodes, connecting(port, context))
    await list_devices(f"wss://127.0.0.1:{port}", context)


@in_ci
def test_nginx_passes_mqtt_on_to_the_node_with_the_fewest_connections(
    nginx: tuple[int, int, int, int], nodes: list[Node], folder: Path
) -> None:
    context = trusting(folder)
    with (
        closing(connecting(nginx[1], context)(ADA)) as one,
        closing(connecting(nginx[1], context)(ADA)) as other,
    ):
        for number, device in enumerate((one, other)):
            device.sendall(mqtt_connect(device_id(number), device_token(number)))
            assert device.recv(100) == ACCEPTED
        assert [metric(node, "trunkline_device_links") for node in nodes] == [1, 1]


#: Addresses of this machine, which are devices of their own for nginx: some go to one node, some to the other.
_ADDRESSES: Final = tuple(f"127.0.0.{number}" for number in range(11, 51))
_FEW: Final = 3


@in_ci
@pytest.mark.parametrize("is_dtls", [False, True], ids=["CoAP", "DTLS"])
def test_nginx_sends_all_datagrams_of_an_address_to_one_node(
    nginx: tuple[int, int, int, int], nodes: list[Node], is_dtls: bool
) -> None:
    """Each request of libcoap's client is a session of its own, with a handshake: the datagrams of one meet."""
    if is_dtls:
        require_dtls()
    client = require_program("coap-client-openssl" if is_dtls else "coap-client-notls")
    token = token_for_an_argument(nodes[0], 4)
    key = ("-u", device_id(4), "-k", bytes.fromhex(token)) if is_dtls else ()
    scheme, port = ("coaps", nginx[3]) if is_dtls else ("coap", nginx[2])
    served = set[str]()
    for number, address in enumerate(_ADDRESSES):  # which one goes where depends on the ports of the nodes
        if number >= _FEW and len(served) == len(nodes):
            break
        before = [requests(node, is_dtls=is_dtls) for node in nodes]
        for value in range(2):
            body = json.dumps({"data": {"intensity": value}})
            uri = f"{scheme}://127.0.0.1:{port}/v1.1/messages/{token}"
            sent = subprocess.run(
                [client, "-a", address, *key, "-m", "post", "-t", "50", "-e", body, uri],
                check=False,
                capture_output=True,
                text=True,
                timeout=PATIENCE_SECONDS,
            )
            assert '"mid"' in sent.stdout, sent.stdout + sent.stderr
        heard = [requests(node, is_dtls=is_dtls) - was for node, was in zip(nodes, before, strict=True)]
        assert min(heard) == 0, "all go to one node"
        assert sum(heard) >= 2
        served.add(nodes[heard.index(max(heard))].name)
    assert served == {"a", "b"}


def token_for_an_argument(node: Node, number: int) -> str:
    """A new token of a device, which has no zero byte."""
    while True:
        made = httpx.put(f"{node.base}/devices/{device_id(number)}/tokens", headers=bearer(USER_TOKEN), timeout=30)
        token = made.raise_for_status().json()["data"]["accessToken"]
        assert isinstance(token, str)
        if all(bytes.fromhex(token)):
            return token


def requests(node: Node, *, is_dtls: bool) -> float:
    text = httpx.get(f"http://127.0.0.1:{node.http}/metrics", timeout=30).text
    (found,) = re.findall(
        rf'(?m)^trunkline_coap_requests_total{{listener="{"coaps" if is_dtls else "coap"}"}} (\S+)$', text
    )
    return float(found)


def metric(node: Node, name: str) -> float:
    text = httpx.get(f"http://127.0.0.1:{node.http}/metrics", timeout=30).text
    return sum(float(value) for value in re.findall(rf"(?m)^{name}(?:{{.*}})? (\S+)$", text))


@in_ci
async def test_caddy_serves_http_and_websockets_of_any_node(caddy: int, nodes: list[Node]) -> None:
    assert names_the_client(nodes, connecting(caddy))
    await list_devices(f"ws://127.0.0.1:{caddy}")


@in_ci
def test_a_node_that_drains_is_left_without_a_refused_request(
    nginx: tuple[int, int, int, int], caddy: int, nodes: list[Node], folder: Path
) -> None:
    a, _ = nodes
    context = trusting(folder)
    with httpx.Client(verify=context, timeout=30) as one, httpx.Client(timeout=30) as other:
        a.daemon.begin_to_stop()
        answers, end, pause = list[int](), time.monotonic() + 30, threading.Event()
        while time.monotonic() < end and (a.daemon.process is not None and a.daemon.process.poll() is None):
            for client, base in ((one, f"https://127.0.0.1:{nginx[0]}"), (other, f"http://127.0.0.1:{caddy}")):
                headers = {"Authorization": f"bearer {device_token(3)}"}
                answers.append(client.get(f"{base}/v1.1/devices/{device_id(3)}", headers=headers).status_code)
            pause.wait(0.05)
        for client, base in ((one, f"https://127.0.0.1:{nginx[0]}"), (other, f"http://127.0.0.1:{caddy}")):
            answers += [
                client.get(f"{base}/v1.1/devices/{device_id(3)}", headers=headers).status_code for _ in range(4)
            ]
    assert a.status() == 0
    assert set(answers) == {200}
    assert len(answers) > 20


async def test_haproxy_passes_the_address_of_the_client_on(
    nodes: list[Node], folder: Path, patch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The nodes are started again: with the PROXY protocol nobody reaches them without a balancer."""
    program, port, mqtt_port = require_program("haproxy"), free_port(), free_port()
    patch.setenv("TRUNKLINE_HTTP_PROXY_PROTOCOL", "required")
    changes = {
        "bind :443": f"bind 127.0.0.1:{port}",
        "bind :8883": f"bind 127.0.0.1:{mqtt_port}",
        "maxconn 20000": "maxconn 200",
        "check port 8080 check-send-proxy": "check check-send-proxy",
    }
    for at, node in enumerate(nodes, 11):
        node.start()
        changes |= {
            f"192.0.2.{at}:8443": f"{node.daemon.addresses['https']} port {node.http}",
            f"192.0.2.{at}:8883": f"{node.daemon.addresses['mqtts']} port {node.http}",
        }
    text = re.sub(r"\n +server c 192\.0\.2\.13.*", "", adapted("haproxy-several.cfg", changes))
    (tmp_path / "haproxy.cfg").write_text(text, encoding="utf-8")
    context = trusting(folder)
    with running([program, "-db", "-f", "haproxy.cfg"], [port, mqtt_port], tmp_path):
        assert names_the_client(nodes, connecting(port, context))
        await list_devices(f"wss://127.0.0.1:{port}", context)
        with closing(connecting(mqtt_port, context)(ADA)) as device:
            device.sendall(mqtt_connect(device_id(0), device_token(0)))
            assert device.recv(100) == ACCEPTED
        with (
            closing(socket.create_connection(("127.0.0.1", nodes[0].http), source_address=(BOB, 0))) as around,
            suppress(ConnectionResetError),
        ):
            around.sendall(b"GET /readyz HTTP/1.1\r\nHost: a\r\n\r\n")
            assert around.recv(100) == b""
