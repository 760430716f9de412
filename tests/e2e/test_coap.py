"""libcoap's clients, an independent implementation."""

import json
import re
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import cache, partial
from pathlib import Path
from random import Random
from socket import AF_INET, SOCK_DGRAM, socket
from tempfile import mkdtemp
from typing import Any

import pytest

from tests.daemon import device_id
from tests.e2e.coap_programs import (
    KEY,
    STATE,
    TIMEOUT_SECONDS,
    CoapServerThread,
    message_id,
    observing_client,
    run_program,
)
from tests.programs import require_program
from tests.protocols.coap.dtls.client import make_certificate
from tests.rows import each_row

PSK_CLIENTS = ("coap-client-openssl", "coap-client-gnutls")


#: Client output for the response to its registration.
REGISTERED = r"2\.05 [^\n]*Observe:\d+,"


ACTION = re.escape('{"actions":[{"name":"setOn"}]}')


@cache
def _certificate(kind: str) -> tuple[Path, Path]:
    return make_certificate(Path(mkdtemp(prefix="certificate-")), kind)


@pytest.fixture(scope="module")
def certificate() -> tuple[Path, Path]:
    return _certificate("ecdsa")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, certificate: tuple[Path, Path]) -> Iterator[CoapServerThread]:
    server = CoapServerThread(tmp_path_factory.mktemp("coap"), certificate)
    yield server
    server.stop()


@pytest.fixture(params=("coap-client-notls", "coap-client-openssl", "coap-client-gnutls"))
def client(request: pytest.FixtureRequest) -> str:
    return require_program(request.param)


@pytest.fixture(params=PSK_CLIENTS)
def dtls(request: pytest.FixtureRequest) -> str:
    return require_program(request.param)


class TestPlain:
    @each_row("options", [(), ("-N",)])
    def test_a_message(self, server: CoapServerThread, client: str, options: tuple[str, ...]) -> None:
        """Confirmable or not."""
        url = server.url("v1.1/messages", 1)
        assert message_id(run_program(client, *options, "-m", "post", "-t", "50", "-e", STATE, url))

    @each_row("size", [16, 64, 1024])
    def test_block_wise(self, server: CoapServerThread, client: str, size: int, tmp_path: Path) -> None:
        """Both ways: the answer is longer than 32 bytes."""
        before = server.statistics()["messages"]
        body = tmp_path / "body.json"
        body.write_text(json.dumps({"data": {"text": "x" * 900}, "filler": "y" * 900}))
        assert message_id(
            run_program(client, "-m", "post", "-b", str(size), "-t", "50", "-f", body, server.url("v1.1/messages", 2))
        )
        assert server.statistics()["messages"] == before + 1

    def test_refusals_and_discovery(self, server: CoapServerThread, client: str, tmp_path: Path) -> None:
        body = tmp_path / "body.json"
        body.write_text(json.dumps({"data": {}, "filler": "y" * 3000}))
        assert "4.13" in run_program(client, "-m", "post", "-t", "50", "-f", body, server.url("v1.1/messages", 2))
        assert "4.01" in run_program(client, "-m", "post", "-e", STATE, server.url("v1.1/messages/none"))
        assert "4.04" in run_program(client, "-m", "get", server.url("nothing"))
        assert "4.05" in run_program(client, "-m", "put", "-e", STATE, server.url("v1.1/messages", 1))
        assert "4.15" in run_program(client, "-m", "post", "-t", "0", "-e", STATE, server.url("v1.1/messages", 1))
        assert "4.02" in run_program(client, "-m", "post", "-O", "2049,x", "-e", STATE, server.url("v1.1/messages", 1))
        assert "</v1.1/actions>" in run_program(client, "-m", "get", server.url(".well-known/core"))

    def test_simulated_loss(self, server: CoapServerThread, client: str) -> None:
        """The client does not send its second datagram, so it sends it again. Each message is stored once."""
        before = server.statistics()["messages"]
        body = ["-m", "post", "-b", "16", "-t", "50", "-e", '{"data":{"text":"longer than 16 bytes"}}']
        assert message_id(run_program(client, "-l", "2", *body, server.url("v1.1/messages", 3)))
        assert server.statistics()["messages"] == before + 1


class TestObserve:
    def test_notification(self, server: CoapServerThread, client: str) -> None:
        with observing_client(client, "-v", "6", "-s", "20", "-m", "get", server.url("v1.1/actions", 4)) as wait_for:
            wait_for(REGISTERED)
            server.act(4)
            wait_for(ACTION)

    def test_notifications_in_blocks(self, server: CoapServerThread, client: str) -> None:
        """Each notification is fetched to its end before the next one is sent (RFC 7959, 2.6)."""
        url = server.url("v1.1/actions", 8)
        with observing_client(client, "-v", "6", "-b", "16", "-s", "20", "-m", "get", url) as wait_for:
            wait_for(REGISTERED)
            for _ in range(3):
                server.act(8)
            # An Action has 30 bytes, so its second block of 16 is the last.
            wait_for(r"(?s)(Block2:1/_/16.*?){3}")

    def test_take_over(self, server: CoapServerThread, client: str) -> None:
        arguments = (client, "-v", "6", "-s", "20", "-m", "get", server.url("v1.1/actions", 5))
        with observing_client(*arguments) as former:
            former(r"2\.05")
            with observing_client(*arguments) as latter:
                former(r"4\.09")
                latter(r"2\.05")

    def test_cancellation(self, server: CoapServerThread, client: str) -> None:
        output = run_program(client, "-v", "6", "-s", "1", "-m", "get", server.url("v1.1/actions", 6))
        assert re.search(REGISTERED, output)
        assert not server.is_online(6)


class TestDtls:
    def test_certificates(
        self, server: CoapServerThread, dtls: str, certificate: tuple[Path, Path], tmp_path: Path
    ) -> None:
        """The server's, and one of the client, which a device without a secure type need not have."""
        own, key = make_certificate(tmp_path, "ecdsa")
        both = tmp_path / "both.pem"
        both.write_bytes(own.read_bytes() + key.read_bytes())
        url = server.url("v1.1/messages", 7, port=server.dtls, host="localhost")
        for shown in ((), ("-c", both, "-j", key)):
            arguments = (*shown, "-R", certificate[0], "-m", "post", "-t", "50", "-e", STATE, url)
            assert message_id(run_program(dtls, *arguments))

    def test_pre_shared_key(self, server: CoapServerThread, dtls: str, tmp_path: Path) -> None:
        body = tmp_path / "body.json"
        body.write_text(json.dumps({"data": {"text": "x" * 900}}))
        url = server.url("v1.1/messages", 0, port=server.dtls)
        credentials = ("-u", device_id(0), "-k", KEY)
        for content in (("-e", STATE), ("-b", "64", "-f", body)):
            assert message_id(run_program(dtls, *credentials, "-m", "post", "-t", "50", *content, url))

    @each_row(("identity", "key"), [(device_id(0), "another key, no!"), ("f" * 32, KEY), ("nobody", KEY)])
    def test_wrong_key(self, server: CoapServerThread, dtls: str, identity: str, key: str) -> None:
        before = server.statistics()
        url = server.url("v1.1/messages", 0, port=server.dtls)
        arguments = (dtls, "-B", "2", "-u", identity, "-k", key, "-m", "post", "-t", "50", "-e", STATE, url)
        assert "mid" not in run_program(*arguments)
        after = server.statistics()
        assert (after["messages"], after["dtls"]["handshakes"]) == (before["messages"], before["dtls"]["handshakes"])
        assert after["dtls"]["half_open"] + after["dtls"]["handshakes_failed"] > (
            before["dtls"]["half_open"] + before["dtls"]["handshakes_failed"]
        )

    def test_observe(self, server: CoapServerThread, dtls: str) -> None:
        url = server.url("v1.1/actions", 0, port=server.dtls)
        credentials = ("-u", device_id(0), "-k", KEY)
        with observing_client(dtls, *credentials, "-v", "6", "-s", "20", "-m", "get", url) as wait_for:
            wait_for(REGISTERED)
            server.act(0)
            wait_for(ACTION)

    def test_many_at_once(self, server: CoapServerThread, dtls: str) -> None:
        url = server.url("v1.1/messages", 0, port=server.dtls)
        arguments = ("-u", device_id(0), "-k", KEY, "-m", "post", "-t", "50", "-e", STATE, url)
        with ExitStack() as stack:
            # libcoap's sockets may share a port (SO_REUSEADDR), so in one of a hundred runs the kernel gives two of
            # thirty clients the same one. Therefore each client has an address of its own.
            running = [
                stack.enter_context(
                    subprocess.Popen((dtls, "-a", f"127.0.1.{one}", *arguments), stdout=subprocess.PIPE, text=True)
                )
                for one in range(1, 31)
            ]
            for one in running:
                stack.callback(one.kill)
            # A lost datagram is sent again after 2, 4, 8 and 16 s (RFC 7252, 4.2).
            assert all(message_id(one.communicate(timeout=3 * TIMEOUT_SECONDS)[0]) for one in running)


def _knows_only(kind: str, dtls: str, folder: Path) -> dict[str, str]:
    """The environment of a client that accepts only signatures of this kind."""
    settings = folder / "client.conf"
    if "gnutls" in dtls:
        other = {"ecdsa": "rsa", "rsa": "ecdsa"}[kind]
        settings.write_text(f"[overrides]\ntls-disabled-kx = ecdhe-{other}\n")
        return {"GNUTLS_SYSTEM_PRIORITY_FILE": str(settings)}
    default = f"[default]\nSignatureAlgorithms = {kind.upper()}+SHA256\n"
    settings.write_text(f"openssl_conf = all\n[all]\nssl_conf = ssl\n[ssl]\nsystem_default = default\n{default}")
    return {"OPENSSL_CONF": str(settings)}


@pytest.fixture(scope="module", params=[("ecdsa", "rsa"), ("ecdsa",), ("rsa",)], ids="-".join)
def offering(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[tuple[str, ...], CoapServerThread]]:
    """The kinds of certificates that a server has, and the server."""
    folder = tmp_path_factory.mktemp("offering")
    server = CoapServerThread(folder, [path for one in request.param for path in _certificate(one)])
    yield request.param, server
    server.stop()


@each_row("kind", ["ecdsa", "rsa"])
def test_each_client_gets_a_certificate_that_it_can_verify(
    dtls: str, kind: str, offering: tuple[tuple[str, ...], CoapServerThread], tmp_path: Path
) -> None:
    offered, server = offering
    url = server.url("v1.1/messages", 7, port=server.dtls, host="localhost")
    patience = "4" if kind in offered else "1"  # a client that is offered no certificate that it takes only waits
    arguments = (dtls, "-B", patience, "-n", "-m", "post", "-t", "50", "-e", STATE, url)
    output = run_program(*arguments, variables=_knows_only(kind, dtls, tmp_path))
    assert ('"mid"' in output) is (kind in offered), output


class LossyRelay(threading.Thread):
    """Between one client and the server: loses a fifth of the datagrams in both directions and doubles a fifth."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self._chance = Random(3)  # noqa: S311 - the same losses in every run
        self._inside, self._outside = socket(AF_INET, SOCK_DGRAM), socket(AF_INET, SOCK_DGRAM)
        self._inside.bind(("127.0.0.1", 0))
        self._outside.connect(("127.0.0.1", port))
        for one in (self._inside, self._outside):
            one.settimeout(0.01)
        self._client: Any = None
        self.lost = 0
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
        else:
            self.lost += 1
        if chance > 0.8:
            send()

    def stop(self) -> None:
        self._is_over.set()
        self.join()
        self._inside.close()
        self._outside.close()


@pytest.mark.parametrize("port", ["plain", "dtls"])
def test_loss_and_duplication(server: CoapServerThread, port: str, tmp_path: Path) -> None:
    """A message in many blocks over a bad network arrives, and is stored once."""
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
        # A client gives up after MAX_RETRANSMIT (RFC 7252, 4.2). Then its user begins again.
        answers = [run_program(*arguments, timeout=100)]
        while '"mid"' not in answers[-1] and len(answers) < 6:
            answers.append(run_program(*arguments, timeout=100))
        assert message_id(answers[-1])
    finally:
        relay.stop()
    assert relay.lost > 0
    # Each request was handled at most once, although datagrams were lost, sent again and doubled.
    assert before < server.statistics()["messages"] <= before + len(answers)
