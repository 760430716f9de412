"""libcoap's clients, which share no code with us, against a listener in a process of its own."""

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from random import Random
from socket import AF_INET, SOCK_DGRAM, socket
from typing import Any

import pytest

from tests.daemon import device_id, device_token
from tests.programs import require_dtls, require_program
from tests.protocols.coap.dtls_client import make_certificate

DEVICES = 60
PATIENCE_SECONDS = 20
PSK_CLIENTS = ("coap-client-openssl", "coap-client-gnutls")
STATE = '{"data":{"state":true}}'
#: What `-k` takes is bytes, so these devices have printable tokens.
KEY = "sixteen bytes ok"
#: What a client prints of the answer to its registration. The number is the time.
REGISTERED = r"2\.05 [^\n]*Observe:\d+,"
ACTION = re.escape('{"actions":[{"name":"setOn"}]}')


class Server:
    """`tests.benchmarks.coap_server`, which serves CoAP and nothing else."""

    def __init__(self, folder: Path, certificate: Sequence[Path], prefix: Sequence[str] = ()) -> None:
        """`certificate` is a chain and its key, or two of each."""
        require_dtls()
        self.prefix = tuple(prefix)
        module = "tests.benchmarks.coap_server"
        arguments = [
            *prefix,
            sys.executable,
            "-m",
            module,
            *map(str, (folder, *certificate[:2], DEVICES, *certificate[2:])),
        ]
        environment = {**os.environ, "COAP_SERVER_TOKEN_0": KEY.encode().hex()}
        self._process = subprocess.Popen(
            arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        ports = self._line()
        self.plain, self.dtls = ports["coap"], ports["coaps"]

    def _line(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the server ended with {self._process.wait()}"
        found: dict[str, Any] = json.loads(line)
        return found

    def tell(self, command: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()

    def statistics(self) -> dict[str, Any]:
        self.tell("statistics")
        return self._line()

    def stop(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        assert self._process.wait(timeout=PATIENCE_SECONDS) == 0

    def url(self, path: str, number: int | None = None, *, port: int | None = None, host: str = "127.0.0.1") -> str:
        scheme = "coaps" if port == self.dtls else "coap"
        token = "" if number is None else "/" + (KEY.encode().hex() if number == 0 else device_token(number))
        return f"{scheme}://{host}:{port or self.plain}/{path}{token}"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_certificate(tmp_path_factory.mktemp("certificate"), "ecdsa")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, certificate: tuple[Path, Path]) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("coap"), certificate)
    yield server
    server.stop()


@pytest.fixture(params=("coap-client-notls", "coap-client-openssl", "coap-client-gnutls"))
def client(request: pytest.FixtureRequest) -> str:
    return require_program(request.param)


@pytest.fixture(params=PSK_CLIENTS)
def dtls(request: pytest.FixtureRequest) -> str:
    return require_program(request.param)


def _run(*arguments: str | Path, patience: float = PATIENCE_SECONDS, variables: Mapping[str, str] | None = None) -> str:
    """Standard output; what goes wrong is said on standard error and added to it."""
    environment = {**os.environ, **(variables or {})}
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=patience, check=False, env=environment)
    return done.stdout + done.stderr


def _mid(output: str) -> str:
    found = re.search(r'\{"data":\{"mid":"([0-9a-f]{32})"\}\}', output)
    assert found is not None, output
    return found[1]


class TestPlain:
    def test_confirmable(self, server: Server, client: str) -> None:
        assert _mid(_run(client, "-m", "post", "-t", "50", "-e", STATE, server.url("v1.1/messages", 1)))

    def test_not_confirmable(self, server: Server, client: str) -> None:
        assert _mid(_run(client, "-N", "-m", "post", "-t", "50", "-e", STATE, server.url("v1.1/messages", 1)))

    @pytest.mark.parametrize("size", [16, 32, 64, 256, 1024])
    def test_block_wise(self, server: Server, client: str, size: int, tmp_path: Path) -> None:
        """Both ways: the answer is longer than 32 bytes."""
        before = server.statistics()["messages"]
        body = tmp_path / "body.json"
        body.write_text(json.dumps({"data": {"text": "x" * 900}, "filler": "y" * 900}))
        assert _mid(_run(client, "-m", "post", "-b", str(size), "-t", "50", "-f", body, server.url("v1.1/messages", 2)))
        assert server.statistics()["messages"] == before + 1

    def test_too_large(self, server: Server, client: str, tmp_path: Path) -> None:
        body = tmp_path / "body.json"
        body.write_text(json.dumps({"data": {}, "filler": "y" * 3000}))
        assert "4.13" in _run(client, "-m", "post", "-t", "50", "-f", body, server.url("v1.1/messages", 2))

    def test_refusals(self, server: Server, client: str) -> None:
        assert "4.01" in _run(client, "-m", "post", "-e", STATE, server.url("v1.1/messages/none"))
        assert "4.04" in _run(client, "-m", "get", server.url("nothing"))
        assert "4.05" in _run(client, "-m", "put", "-e", STATE, server.url("v1.1/messages", 1))
        assert "4.15" in _run(client, "-m", "post", "-t", "0", "-e", STATE, server.url("v1.1/messages", 1))
        assert "4.02" in _run(client, "-m", "post", "-O", "2049,x", "-e", STATE, server.url("v1.1/messages", 1))

    def test_discovery(self, server: Server, client: str) -> None:
        assert "</v1.1/actions>" in _run(client, "-m", "get", server.url(".well-known/core"))

    def test_simulated_loss(self, server: Server, client: str) -> None:
        """Its second datagram of each four never leaves: retransmission, and not a message too many."""
        before = server.statistics()["messages"]
        body = ["-m", "post", "-b", "16", "-t", "50", "-e", '{"data":{"text":"longer than 16 bytes"}}']
        assert _mid(_run(client, "-l", "2", *body, server.url("v1.1/messages", 3)))
        assert server.statistics()["messages"] == before + 1


@contextmanager
def _observing(*arguments: str | Path) -> Iterator[Callable[[str], None]]:
    """A client that observes; gives a function that waits until it has printed something."""
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=0)
    printed = b""

    def wait_for(pattern: str) -> None:
        nonlocal printed
        assert process.stdout is not None
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not re.search(pattern.encode(), printed):
            assert time.monotonic() < deadline, printed
            more = process.stdout.read(1000)
            assert more, printed
            printed += more

    try:
        yield wait_for
    finally:
        process.terminate()
        process.wait(timeout=PATIENCE_SECONDS)
        assert process.stdout is not None
        process.stdout.close()


class TestObserve:
    def test_notification(self, server: Server, client: str) -> None:
        with _observing(client, "-v", "6", "-s", "20", "-m", "get", server.url("v1.1/actions", 4)) as wait_for:
            wait_for(REGISTERED)
            server.tell("action 4")
            wait_for(ACTION)

    def test_notifications_in_blocks(self, server: Server, client: str) -> None:
        """Each of them is fetched to its end before the next one comes (RFC 7959 section 2.6)."""
        url = server.url("v1.1/actions", 8)
        with _observing(client, "-v", "6", "-b", "16", "-s", "20", "-m", "get", url) as wait_for:
            wait_for(REGISTERED)
            for _ in range(3):
                server.tell("action 8")
            # Of 30 bytes: the last block of each has the rest.
            wait_for(r"(?s)(Block2:1/_/16.*?){3}")

    def test_take_over(self, server: Server, client: str) -> None:
        arguments = (client, "-v", "6", "-s", "20", "-m", "get", server.url("v1.1/actions", 5))
        with _observing(*arguments) as former:
            former(r"2\.05")
            with _observing(*arguments) as latter:
                former(r"4\.09")
                latter(r"2\.05")

    def test_cancellation(self, server: Server, client: str) -> None:
        online = server.statistics()["online"]
        output = _run(client, "-v", "6", "-s", "1", "-m", "get", server.url("v1.1/actions", 6))
        assert re.search(REGISTERED, output)
        assert server.statistics()["online"] == online


class TestDtls:
    def test_certificate(self, server: Server, dtls: str, certificate: tuple[Path, Path]) -> None:
        url = server.url("v1.1/messages", 7, port=server.dtls, host="localhost")
        assert _mid(_run(dtls, "-R", certificate[0], "-m", "post", "-t", "50", "-e", STATE, url))

    def test_client_certificate(
        self, server: Server, dtls: str, certificate: tuple[Path, Path], tmp_path: Path
    ) -> None:
        own, key = make_certificate(tmp_path, "ecdsa")
        both = tmp_path / "both.pem"
        both.write_bytes(own.read_bytes() + key.read_bytes())
        url = server.url("v1.1/messages", 7, port=server.dtls, host="localhost")
        assert _mid(_run(dtls, "-c", both, "-j", key, "-R", certificate[0], "-m", "post", "-t", "50", "-e", STATE, url))

    def test_pre_shared_key(self, server: Server, dtls: str) -> None:
        url = server.url("v1.1/messages", 0, port=server.dtls)
        assert _mid(_run(dtls, "-u", device_id(0), "-k", KEY, "-m", "post", "-t", "50", "-e", STATE, url))

    @pytest.mark.parametrize(
        ("identity", "key"), [(device_id(0), "another key, no!"), ("f" * 32, KEY), ("nobody", KEY)]
    )
    def test_wrong_key(self, server: Server, dtls: str, identity: str, key: str) -> None:
        before = server.statistics()["messages"]
        url = server.url("v1.1/messages", 0, port=server.dtls)
        arguments = (dtls, "-B", "2", "-u", identity, "-k", key, "-m", "post", "-t", "50", "-e", STATE, url)
        assert "mid" not in _run(*arguments)
        assert server.statistics()["messages"] == before

    def test_block_wise(self, server: Server, dtls: str, tmp_path: Path) -> None:
        body = tmp_path / "body.json"
        body.write_text(json.dumps({"data": {"text": "x" * 900}}))
        url = server.url("v1.1/messages", 0, port=server.dtls)
        credentials = ("-u", device_id(0), "-k", KEY)
        assert _mid(_run(dtls, *credentials, "-m", "post", "-b", "64", "-t", "50", "-f", body, url))

    def test_observe(self, server: Server, dtls: str) -> None:
        url = server.url("v1.1/actions", 0, port=server.dtls)
        credentials = ("-u", device_id(0), "-k", KEY)
        with _observing(dtls, *credentials, "-v", "6", "-s", "20", "-m", "get", url) as wait_for:
            wait_for(REGISTERED)
            server.tell("action 0")
            wait_for(ACTION)

    def test_many_at_once(self, server: Server, dtls: str) -> None:
        url = server.url("v1.1/messages", 0, port=server.dtls)
        arguments = ("-u", device_id(0), "-k", KEY, "-m", "post", "-t", "50", "-e", STATE, url)
        with ExitStack() as stack:
            # libcoap lets its sockets share a port (SO_REUSEADDR), and so the kernel gives two of thirty the same one
            # in one of a hundred runs. Each has an address of its own, as devices have.
            running = [
                stack.enter_context(
                    subprocess.Popen((dtls, "-a", f"127.0.1.{one}", *arguments), stdout=subprocess.PIPE, text=True)
                )
                for one in range(1, 31)
            ]
            for one in running:
                stack.callback(one.kill)
            # What is lost in the crowd is sent again after 2, 4, 8 and 16 seconds (RFC 7252, 4.2).
            assert all(_mid(one.communicate(timeout=3 * PATIENCE_SECONDS)[0]) for one in running)


def _knows_only(kind: str, dtls: str, folder: Path) -> dict[str, str]:
    """The environment of a client that verifies nothing but signatures of this kind."""
    settings = folder / "client.conf"
    if "gnutls" in dtls:
        other = {"ecdsa": "rsa", "rsa": "ecdsa"}[kind]
        settings.write_text(f"[overrides]\ntls-disabled-kx = ecdhe-{other}\n")
        return {"GNUTLS_SYSTEM_PRIORITY_FILE": str(settings)}
    default = f"[default]\nSignatureAlgorithms = {kind.upper()}+SHA256\n"
    settings.write_text(f"openssl_conf = all\n[all]\nssl_conf = ssl\n[ssl]\nsystem_default = default\n{default}")
    return {"OPENSSL_CONF": str(settings)}


@pytest.mark.parametrize("kind", ["ecdsa", "rsa"])
@pytest.mark.parametrize("offered", [("ecdsa", "rsa"), ("ecdsa",), ("rsa",)])
def test_each_client_gets_a_certificate_that_it_can_verify(
    dtls: str, kind: str, offered: tuple[str, ...], tmp_path: Path
) -> None:
    server = Server(tmp_path, [path for one in offered for path in make_certificate(tmp_path, one)])
    try:
        url = server.url("v1.1/messages", 7, port=server.dtls, host="localhost")
        arguments = (dtls, "-B", "4", "-n", "-m", "post", "-t", "50", "-e", STATE, url)
        output = _run(*arguments, variables=_knows_only(kind, dtls, tmp_path))
        assert ('"mid"' in output) is (kind in offered), output
    finally:
        server.stop()


# --- Loss ---------------------------------------------------------------------------------------------------------


class LossyRelay(threading.Thread):
    """Between one client and the server: loses a fifth of the datagrams, both ways, and repeats another."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self._chance = Random(20_260_101)  # noqa: S311 - the same losses in every run
        self._inside, self._outside = socket(AF_INET, SOCK_DGRAM), socket(AF_INET, SOCK_DGRAM)
        self._inside.bind(("127.0.0.1", 0))
        self._outside.connect(("127.0.0.1", port))
        for one in (self._inside, self._outside):
            one.settimeout(0.01)
        self._client: Any = None
        self._is_over = threading.Event()
        self.port = self._inside.getsockname()[1]

    def run(self) -> None:
        while not self._is_over.is_set():
            with suppress(TimeoutError):
                datagram, self._client = self._inside.recvfrom(4096)
                self._pass(partial(self._outside.send, datagram))
            with suppress(TimeoutError):
                datagram = self._outside.recv(4096)
                self._pass(partial(self._inside.sendto, datagram, self._client))

    def _pass(self, send: Callable[[], object]) -> None:
        chance = self._chance.random()
        if chance > 0.2:
            send()
        if chance > 0.8:
            send()

    def stop(self) -> None:
        self._is_over.set()
        self.join()
        self._inside.close()
        self._outside.close()


@pytest.mark.parametrize("port", ["plain", "dtls"])
def test_loss_and_duplication(server: Server, port: str, tmp_path: Path) -> None:
    """A message in many blocks through a bad network: it arrives, and once."""
    client = require_program("coap-client-gnutls")
    before = server.statistics()["messages"]
    relay = LossyRelay(getattr(server, port))
    relay.start()
    body = tmp_path / "body.json"
    body.write_text(json.dumps({"data": {"text": "x" * 300}}))
    url = f"{'coaps' if port == 'dtls' else 'coap'}://127.0.0.1:{relay.port}/v1.1/messages/{KEY.encode().hex()}"
    credentials = ("-u", device_id(0), "-k", KEY) if port == "dtls" else ()
    try:
        arguments = (client, *credentials, "-m", "post", "-b", "64", "-t", "50", "-f", body, url)
        # RFC 7252, 4.2: a client gives up after MAX_RETRANSMIT; then it is for its user to begin again.
        answers = [_run(*arguments, patience=100)]
        while '"mid"' not in answers[-1] and len(answers) < 6:
            answers.append(_run(*arguments, patience=100))
        assert _mid(answers[-1])
    finally:
        relay.stop()
    # Each of the client's requests was handled once at most, whatever was lost, sent again or doubled on the way.
    assert before < server.statistics()["messages"] <= before + len(answers)


@pytest.fixture
def lossy_namespace() -> Iterator[str]:
    """A network of its own that loses every fifth datagram, where the machine allows it."""
    for program in ("ip", "tc"):
        require_program(program)
    name = f"coap-{os.getpid()}"

    def run(*command: str) -> None:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"{' '.join(command)}: {done.stderr.strip()}")

    run("ip", "netns", "add", name)
    try:
        inside = ("ip", "netns", "exec", name)
        run(*inside, "ip", "link", "set", "lo", "up")
        run(*inside, "tc", "qdisc", "add", "dev", "lo", "root", "netem", "loss", "20%")
        yield name
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=False)


def test_loss_in_a_network_of_its_own(lossy_namespace: str, tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    client = require_program("coap-client-notls")
    inside = ("ip", "netns", "exec", lossy_namespace)
    server = Server(tmp_path, certificate, inside)
    try:
        asked = 0
        for number in range(10):
            url, answer = server.url("v1.1/messages", number + 1), ""
            for _ in range(4):  # of five transmissions each is lost with its answer in one of 165 runs
                asked += 1
                answer = _run(*inside, client, "-m", "post", "-t", "50", "-e", STATE, url, patience=100)
                if '"mid"' in answer:
                    break
            assert _mid(answer)
        assert 10 <= server.statistics()["messages"] <= asked
    finally:
        server.stop()
