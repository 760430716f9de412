"""One daemon for all end-to-end tests that only need one; every test has devices of its own on it."""

import datetime as dt
import ipaddress
import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.daemon import APPLICATION_TOKEN, USER_TOKEN, Daemon, bearer, device_id, running_daemon
from tests.e2e.accounts.node_program import installed_programs
from tests.forked_program import forked_program

DEVICES = 200


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate for 127.0.0.1; its key is `key.pem` in the same folder."""
    folder = tmp_path_factory.mktemp("tls")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = folder / "certificate.pem"
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return path


@pytest.fixture(scope="session")
def daemon(tmp_path_factory: pytest.TempPathFactory, certificate: Path) -> Iterator[Daemon]:
    tls = f'[tls]\ncertificate = "{certificate}"\nkey = "{certificate.with_name("key.pem")}"\n'
    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as environment:  # which other tests' daemons must not see
            environment.setenv("TRUNKLINE_MQTT_TLS_BIND", "127.0.0.1:0")
            folder = tmp_path_factory.mktemp("daemon")
            running = stack.enter_context(running_daemon(folder, devices=DEVICES, settings=tls))
        yield running


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The program `trunkline` for shells and `subprocess`. Its commands are forks, which SIGKILL does not reach."""
    folder = tmp_path_factory.mktemp("program")
    with forked_program(folder):
        yield folder / "trunkline"


@pytest.fixture(scope="session")
def node_folder() -> Path:
    return installed_programs()


@pytest.fixture(scope="session")
def device_numbers() -> Iterator[int]:
    return itertools.count()


@pytest.fixture
def new_device(device_numbers: Iterator[int]) -> Callable[[], int]:
    """Gives the number of a device that no other test has."""

    def take() -> int:
        number = next(device_numbers)
        assert number < DEVICES, "provision more devices for the end-to-end tests"
        return number

    return take


@pytest.fixture
def rest(daemon: Daemon) -> Iterator["Rest"]:
    with httpx.Client(base_url=daemon.base_url, headers=bearer(USER_TOKEN), timeout=30) as client:
        yield Rest(client)


class Rest:
    """Client of an application of the devices' owner."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def last(self, number: int, count: int = 100) -> list[dict[str, Any]]:
        """The messages received last, newest first."""
        answer = self._client.get("/messages/last", params={"sdids": device_id(number), "count": str(count)})
        messages: list[dict[str, Any]] = answer.raise_for_status().json()["data"]
        return messages

    def by_mid(self, mid: str) -> dict[str, Any]:
        (message,) = self._client.get("/messages", params={"mid": mid}).raise_for_status().json()["data"]
        found: dict[str, Any] = message
        return found

    def act(self, number: int, *actions: dict[str, Any]) -> str:
        """Send Actions to a device; gives the mid."""
        body = {"ddid": device_id(number), "type": "action", "data": {"actions": actions}}
        answer = self._client.post("/actions", json=body, headers=bearer(APPLICATION_TOKEN))
        mid: str = answer.raise_for_status().json()["data"]["mid"]
        return mid
