"""Secure registration with the real daemon, and independent clients that present certificates."""

import datetime as dt
import socket
import ssl
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import wsproto

from tests.certificates import Authority, Issued, Kind
from tests.daemon import USER_TOKEN, Daemon, bearer, command_output, device_id, device_token, running_daemon
from tests.programs import require_dtls, require_program
from tests.protocols.mqtt.peers import ACCEPTED, connect, puback, publish, refused

PATIENCE_SECONDS: Final = 60
SECURE_TYPE: Final = "dt" + "5e" * 16
STATE: Final = '{"state":true}'


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority(now=dt.datetime.now(dt.UTC))


@pytest.fixture(scope="module")
def factory(authority: Authority) -> Authority:
    return authority.delegate()


@pytest.fixture(scope="module")
def secured(
    tmp_path_factory: pytest.TempPathFactory, certificate: Path, authority: Authority, factory: Authority
) -> Iterator[Daemon]:
    """A daemon with every encrypted listener; the secure type is provisioned while it runs."""
    folder = tmp_path_factory.mktemp("secured")
    tls = f'[tls]\ncertificate = "{certificate}"\nkey = "{certificate.with_name("key.pem")}"\n'
    with pytest.MonkeyPatch.context() as environment:
        for name in ("HTTP_TLS_BIND", "MQTT_TLS_BIND", "SECURE_TLS_BIND", "COAP_DTLS_BIND", "LWM2M_TLS_BIND"):
            environment.setenv(f"TRUNKLINE_{name}", "127.0.0.1:0")
        with running_daemon(folder, devices=2, settings=tls) as daemon:
            # The factory is an authority, too: libcoap's client presents only its own certificate, no chain.
            (folder / "ca.pem").write_text(authority.pem + factory.pem, encoding="utf-8")
            (folder / "secure.toml").write_text(
                f'[[device_types]]\nid = "{SECURE_TYPE}"\nunique_name = "example.secure_board"\norganization = "Acme"\n'
                'published = true\nrsp = true\nca = "ca.pem"\nmanifest = "light.json"\n',
                encoding="utf-8",
            )
            for expected in ("1 created", "1 unchanged"):
                report = command_output("provision", folder / "secure.toml", "--config", daemon.config)
                assert expected in report
            yield daemon


@dataclass(frozen=True)
class Board:
    id: str
    token: str
    certificate: Path
    key: Path


def run(*arguments: str | Path) -> str:
    """Standard output and error, followed by the exit status."""
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    return f"{done.stdout}{done.stderr}\nstatus {done.returncode}"


@pytest.fixture(scope="module", params=["ec", "rsa"])
def board(
    request: pytest.FixtureRequest, secured: Daemon, factory: Authority, certificate: Path, tmp_path_factory: Any
) -> Board:
    """A device that has registered itself with a certificate of a factory below the authority."""
    kind: Kind = request.param
    issued = factory.issue(f"board-{kind}", kind=kind)
    chain, key = issued.files(tmp_path_factory.mktemp("board"), kind)
    context = ssl.create_default_context(cafile=str(certificate))
    context.load_cert_chain(chain, key)
    user = httpx.Client(base_url=secured.base_url, headers=bearer(USER_TOKEN))
    with httpx.Client(base_url=f"https://{secured.addresses['secure']}/v1.1", verify=context) as device, user:
        wanted = {"deviceTypeId": "example.secure_board", "vendorDeviceId": f"vendor-{kind}"}
        begun = device.post("/cert/devices/registrations", json=wanted).raise_for_status().json()["data"]
        pin = {"pin": begun["pin"], "deviceName": "Board"}
        user.put("/devices/registrations/pin", json=pin).raise_for_status()
        path = f"/cert/devices/registrations/{begun['rid']}"
        done = device.put(path, json={"nonce": begun["nonce"]}).raise_for_status().json()["data"]
    return Board(done["did"], done["accessToken"], chain, key)


@pytest.fixture(scope="module")
def strangers(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> list[list[Path]]:
    """Certificates of others that must not be accepted."""
    folder = tmp_path_factory.mktemp("strangers")
    others: list[Issued] = [
        authority.issue("board-ec"),
        Authority("board-ec", now=dt.datetime.now(dt.UTC), extensions=()).own,
    ]
    return [[], *(list(other.files(folder, str(number))) for number, other in enumerate(others))]


#: Answers of each listener before authentication: to a request, an unknown level of MQTT, a ping of RFC 8323.
_ANSWERED: Final = {
    "https": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "secure": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "mqtts": b"\x10\x0d\0\4MQTT\x84\2\0\x3c\0\1x",
    "lwm2m_tls": b"\0\xe2",
}


@pytest.mark.parametrize("name", _ANSWERED)
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_every_tls_listener_resumes_sessions(
    secured: Daemon, certificate: Path, strangers: list[list[Path]], name: str, version: ssl.TLSVersion
) -> None:
    context = ssl.create_default_context(cafile=str(certificate))
    context.minimum_version = context.maximum_version = version
    chain, key = strangers[1]
    context.load_cert_chain(chain, key)
    session = None
    for is_reused in (False, True):
        with (
            socket.create_connection(secured.host_port(name), timeout=PATIENCE_SECONDS) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1", session=session) as stream,
        ):
            stream.sendall(_ANSWERED[name])
            assert stream.recv(1)  # the tickets of TLS 1.3 come before it
            assert stream.session_reused is is_reused
            session = stream.session


class TestMqtt:
    def publish(self, daemon: Daemon, certificate: Path, who: tuple[str, str], shown: list[Path]) -> str:
        program = require_program("mosquitto_pub")
        did, token = who
        tls: list[str | Path] = ["--cafile", certificate]
        for option, path in zip(("--cert", "--key"), shown, strict=False):
            tls += [option, path]
        address = ["-h", "127.0.0.1", "-p", str(daemon.port("mqtts")), "-u", did, "-P", token]
        return run(program, *address, *tls, "-q", "1", "-t", f"/v1.1/messages/{did}", "-m", STATE)

    def test_a_secure_device_publishes_with_its_certificate(
        self, secured: Daemon, certificate: Path, board: Board
    ) -> None:
        said = self.publish(secured, certificate, (board.id, board.token), [board.certificate, board.key])
        assert said.endswith("status 0")

    def test_no_other_certificate_is_admitted(
        self, secured: Daemon, certificate: Path, board: Board, strangers: list[list[Path]]
    ) -> None:
        for shown in strangers:
            said = self.publish(secured, certificate, (board.id, board.token), shown)
            assert "not authori" in said, said
            assert not said.endswith("status 0")

    def test_a_secure_device_is_refused_without_encryption(self, secured: Daemon, board: Board) -> None:
        address = ["-h", "127.0.0.1", "-p", str(secured.port("mqtt")), "-u", board.id, "-P", board.token]
        topic = f"/v1.1/messages/{board.id}"
        said = run(require_program("mosquitto_pub"), *address, "-q", "1", "-t", topic, "-m", STATE)
        assert "not authori" in said

    def test_other_devices_need_no_certificate_and_may_present_any(
        self, secured: Daemon, certificate: Path, strangers: list[list[Path]]
    ) -> None:
        for shown in strangers:
            said = self.publish(secured, certificate, (device_id(0), device_token(0)), shown)
            assert said.endswith("status 0"), said


class TestMqttOverWebSocket:
    def heard(self, daemon: Daemon, certificate: Path, board: Board, shown: list[Path]) -> list[bytes]:
        """The server's packets after CONNECT and a message of QoS 1, up to PUBACK or its end."""
        context = ssl.create_default_context(cafile=str(certificate))
        chain, key = shown
        context.load_cert_chain(chain, key)
        address = daemon.host_port("secure")
        with (
            socket.create_connection(address, timeout=PATIENCE_SECONDS) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as stream,
        ):
            peer = wsproto.WSConnection(wsproto.ConnectionType.CLIENT)
            stream.sendall(peer.send(wsproto.events.Request(host="127.0.0.1", target="/mqtt", subprotocols=["mqtt"])))
            topic = f"/v1.1/messages/{board.id}".encode()
            said: list[bytes] = []
            while puback() not in said and (received := stream.recv(65_536)):
                peer.receive_data(received)
                for event in peer.events():
                    match event:
                        case wsproto.events.AcceptConnection():
                            for packet in (connect(board.id, board.token), publish(topic=topic)):
                                stream.sendall(peer.send(wsproto.events.BytesMessage(packet)))
                        case wsproto.events.BytesMessage(data=data):
                            said.append(bytes(data))
                        case wsproto.events.CloseConnection():
                            return said
        return said

    def test_the_certificate_of_the_secure_listener_counts(
        self, secured: Daemon, certificate: Path, board: Board, strangers: list[list[Path]]
    ) -> None:
        assert self.heard(secured, certificate, board, [board.certificate, board.key]) == [ACCEPTED, puback()]
        for shown in filter(None, strangers):  # without one, there is no TLS
            assert self.heard(secured, certificate, board, shown) == [refused(5)]


class TestCoap:
    def post(self, daemon: Daemon, token: str, shown: list[Path]) -> str:
        require_dtls()
        program = require_program("coap-client-openssl")
        tls: list[str | Path] = ["-n"]
        for option, path in zip(("-c", "-j"), shown, strict=False):
            tls += [option, path]
        url = f"coaps://127.0.0.1:{daemon.port('coaps')}/v1.1/messages/{token}"
        return run(program, *tls, "-B", "10", "-m", "post", "-t", "50", "-e", f'{{"data":{STATE}}}', url)

    def test_a_secure_device_posts_with_its_certificate(self, secured: Daemon, board: Board) -> None:
        assert '"mid"' in self.post(secured, board.token, [board.certificate, board.key])

    def test_no_other_certificate_is_admitted(self, secured: Daemon, board: Board, strangers: list[list[Path]]) -> None:
        for shown in strangers:
            assert "4.03" in self.post(secured, board.token, shown)

    def test_other_devices_need_no_certificate_and_may_present_any(
        self, secured: Daemon, strangers: list[list[Path]]
    ) -> None:
        for shown in strangers:
            assert '"mid"' in self.post(secured, device_token(0), shown)


def test_curl_needs_a_certificate_on_the_secure_listener(secured: Daemon, certificate: Path, board: Board) -> None:
    url = f"https://{secured.addresses['secure']}/v1.1/devices/{board.id}"
    curl = (require_program("curl"), "-sS", "--cacert", certificate, "-H", f"Authorization: Bearer {board.token}", url)
    assert board.id in run(*curl, "--cert", board.certificate, "--key", board.key)
    assert not run(*curl).endswith("status 0")
