"""SIGHUP on the real daemon (reference 27.13), and what monitoring and the doctor find there."""

import json
import os
import shutil
import signal
import socket
import ssl
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import httpx
import pytest
from cryptography import x509

from tests.daemon import USER_TOKEN, Daemon, bearer, device_id, device_token, run_command, running_daemon
from tests.protocols.coap.dtls.client import make_certificate
from tests.protocols.mqtt.peers import ACCEPTED, PINGREQ, PINGRESP, connect

TLS_LISTENERS = ("https", "accounts", "secure", "mqtts")


def settings_of(folder: Path, *, calls: int, more: str = "") -> str:
    anywhere = '"127.0.0.1:0"'
    return (
        f'rest_user = "{calls}/1000"\n[secure]\ntls_bind = {anywhere}\n[accounts]\ntls_bind = {anywhere}\n'
        f'[tls]\ncertificate = "{folder}/server.pem"\nkey = "{folder}/server.key"\n{more}'
    )


def put_certificate(folder: Path, kind: str) -> int:
    """Put a new certificate where the daemon reads it; returns its serial number."""
    folder.joinpath(kind).mkdir()
    for made, name in zip(make_certificate(folder / kind, kind), ("server.pem", "server.key"), strict=True):
        shutil.copy(made, folder / name)
    (folder / "server.key").chmod(0o600)
    return serial_of(folder.joinpath("server.pem").read_bytes())


def serial_of(pem: bytes) -> int:
    return x509.load_pem_x509_certificate(pem).serial_number


class Supervisor:
    """Hears what the daemon says to systemd."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.settimeout(60)

    def reload(self, daemon: Daemon) -> str:
        """Send SIGHUP; returns the status that the daemon gives afterwards."""
        assert daemon.process is not None
        daemon.process.send_signal(signal.SIGHUP)
        assert self.next().startswith("RELOADING=1\nMONOTONIC_USEC=")
        ready, _, status = self.next().partition("\nSTATUS=")
        assert ready == "READY=1"
        return status

    def next(self) -> str:
        return self._socket.recv(65_536).decode()

    def close(self) -> None:
        self._socket.close()


@contextmanager
def greeted(daemon: Daemon, listener: str) -> Iterator[ssl.SSLSocket]:
    """A TLS connection to a listener."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    # The secure listener, which wants a certificate of the client, shows its own first and refuses afterwards.
    with (
        socket.create_connection(daemon.host_port(listener), timeout=30) as sock,
        context.wrap_socket(sock) as stream,
    ):
        yield stream


def serial_at(daemon: Daemon, listener: str) -> int:
    with greeted(daemon, listener) as stream:
        shown = stream.getpeercert(binary_form=True)
    assert shown is not None
    return x509.load_der_x509_certificate(shown).serial_number


def rate_at(daemon: Daemon) -> str:
    answer = httpx.get(f"{daemon.base_url}/users/self", headers=bearer(USER_TOKEN))
    return answer.headers["X-Rate-Limit-Limit"].partition("/")[0]


def asked(stream: ssl.SSLSocket) -> bytes:
    """The first line of the answer on a connection that stays open."""
    stream.sendall(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
    received = b""
    while not received.endswith(b"ok\n"):
        received += stream.recv(65_536)
    return received.split(b"\r\n", 1)[0]


def pinged(stream: ssl.SSLSocket) -> bytes:
    """The answer to a PINGREQ on an MQTT connection that stays open."""
    stream.sendall(PINGREQ)
    return stream.recv(2)


@pytest.fixture
def supervisor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Supervisor]:
    path = tmp_path / "notify"
    monkeypatch.setenv("NOTIFY_SOCKET", str(path))
    for name, value in (
        ("HTTP_TLS_BIND", "127.0.0.1:0"),
        ("MQTT_TLS_BIND", "127.0.0.1:0"),
        ("LIMITS_RATE_LIMITS", "on"),
    ):
        monkeypatch.setenv(f"TRUNKLINE_{name}", value)
    with closing(Supervisor(path)) as hearing:
        yield hearing


def test_a_reload_takes_certificates_and_rates_and_no_connection_ends(tmp_path: Path, supervisor: Supervisor) -> None:
    first = put_certificate(tmp_path, "ecdsa")
    with running_daemon(tmp_path, devices=1, settings=settings_of(tmp_path, calls=50)) as daemon:
        with greeted(daemon, "https") as held, greeted(daemon, "mqtts") as device:
            device.sendall(connect(device_id(0), device_token(0)))
            assert device.recv(4) == ACCEPTED
            assert supervisor.next() == "READY=1\nSTATUS=Listening"
            assert asked(held) == b"HTTP/1.1 200 "
            assert [serial_at(daemon, name) for name in TLS_LISTENERS] == [first] * 4
            assert rate_at(daemon) == "50"

            second = put_certificate(tmp_path, "rsa")  # of the other kind of key
            daemon.settings = settings_of(tmp_path, calls=60, more="[audit]\nkeep_days = 7\n")
            daemon.write_config()
            assert supervisor.reload(daemon) == "Reloaded; needs a restart: audit.keep_days"
            assert asked(held) == b"HTTP/1.1 200 "
            assert pinged(device) == PINGRESP
            assert [serial_at(daemon, name) for name in TLS_LISTENERS] == [second] * 4
            assert rate_at(daemon) == "60"

            daemon.settings = settings_of(tmp_path, calls=70)
            daemon.write_config()
            (tmp_path / "server.pem").write_text("broken", encoding="ascii")
            assert supervisor.reload(daemon).startswith("Not reloaded: tls: cannot use certificate")
            daemon.settings = settings_of(tmp_path, calls=70, more="[audit]\nkeep_dys = 1\n")
            daemon.write_config()
            assert supervisor.reload(daemon).endswith(
                "audit.keep_dys: unknown setting (allowed: keep_days, keep_entries)"
            )
            assert asked(held) == b"HTTP/1.1 200 "
            assert [serial_at(daemon, name) for name in TLS_LISTENERS] == [second] * 4
            assert rate_at(daemon) == "60"

        daemon.settings = settings_of(tmp_path, calls=60)
        daemon.write_config()
        the_doctor_finds_the_running_daemon(daemon)
        monitoring_knows_the_listeners(daemon)


def the_doctor_finds_the_running_daemon(daemon: Daemon) -> None:
    """Its certificate file is broken now, and it listens on free ports."""
    environment = {**os.environ, "TRUNKLINE_HTTP_BIND": daemon.addresses["http"]}
    done = run_command("doctor", "--json", "--config", daemon.config, environment=environment)
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)["checks"]
    texts = {check["text"] for check in found if check["ok"]}
    assert daemon.process is not None
    assert f"runs as process {daemon.process.pid}" in texts
    assert f"http {daemon.addresses['http']}" in texts
    assert any("no damage" in text or "PostgreSQL" in text for text in texts)
    assert ["no certificate in PEM" in check["text"] for check in found if check["check"] == "certificate"] == [True]


def monitoring_knows_the_listeners(daemon: Daemon) -> None:
    address = f"http://{daemon.addresses['http']}"
    assert httpx.get(f"{address}/readyz").text == "ok\n"
    assert httpx.get(f"{address}/v1.1/users/self").status_code == 401
    text = httpx.get(f"{address}/metrics").text
    assert 'trunkline_http_responses_total{code="200",listener="https"} 3.0' in text.replace(
        'listener="https",code="200"', 'code="200",listener="https"'
    )
    assert 'event="http_credentials_refused",listener="http"' in text
