"""The ways out to upstreams: TLS with a CA file, and names that cannot be resolved."""

import socket
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from broker.forwarding.port import UpstreamError
from config.settings import Forward
from protocols.outbound.forwarding import OutboundUpstreams
from tests.protocols.http.certificates import contexts
from tests.served import served

PATIENCE_SECONDS = 30


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
    server.handle_error = lambda *_: None  # type: ignore[method-assign,assignment] # a client that does not trust it
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


async def ignored(_topic: str, _payload: bytes) -> None:
    pass
