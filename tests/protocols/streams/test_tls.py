"""TLS that asks for client certificates: `trio.SSLStream` over pyOpenSSL, against clients of Python's `ssl`."""

import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
import trio
from structlog.testing import capture_logs

from broker.life import Life
from broker.registration.certificates import ClientCertificate
from config.settings import Address
from protocols.streams.listeners import Stream, serve_tcp
from protocols.streams.tls import PeerContext, peer_certificate
from tests.certificates import Authority, Issued
from tests.fakes import new_refusals
from tests.protocols.http.certificates import contexts
from tests.rows import each_row
from tests.secure_types import NOW

Connect = Callable[..., Awaitable[trio.SSLStream[trio.SocketStream]]]
ALPN: list[tuple[list[str], str | None]] = [
    (["mqtt"], "mqtt"),
    (["http/1.1", "mqtt"], "mqtt"),
    (["http/1.1"], None),
    ([], None),
]
VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]


@pytest.fixture
def shown() -> list[ClientCertificate | None]:
    """The certificates that clients have shown, in order."""
    return []


@pytest.fixture
async def address(nursery: trio.Nursery, tmp_path: Path, shown: list[ClientCertificate | None]) -> Address:
    """The address of an echo server that asks for certificates and requires none."""

    async def echo(stream: Stream) -> None:
        shown.append(peer_certificate(stream))
        while received := await stream.receive_some(65_536):
            await stream.send_all(received)

    contexts(tmp_path)
    context = PeerContext(tmp_path / "cert.pem", tmp_path / "key.pem", required=False)
    serve = partial(serve_tcp, Address("127.0.0.1", 0), echo, protocol="echo", ssl_context=context)
    bound: Address = await nursery.start(partial(serve, refusals=new_refusals(), life=Life(), connections=nursery))
    return bound


@pytest.fixture
def connect(address: Address, tmp_path: Path) -> Connect:
    async def open_stream(
        issued: Issued | None = None, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3
    ) -> trio.SSLStream[trio.SocketStream]:
        context = client_context(tmp_path, issued, version)
        return await trio.open_ssl_over_tcp_stream(address.host, address.port, ssl_context=context)

    return open_stream


def client_context(folder: Path, issued: Issued | None, version: ssl.TLSVersion) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(folder / "cert.pem"))
    context.minimum_version = context.maximum_version = version
    if issued is not None:
        context.load_cert_chain(*issued.files(folder, "client"))
    return context


async def receive_exactly(stream: trio.abc.ReceiveStream, size: int) -> bytes:
    received = b""
    while len(received) < size and (some := await stream.receive_some(65_536)):
        received += some
    return received


@each_row("version", VERSIONS)
@each_row("size", [1, 16_384, 16_385, 1_000_000])
async def test_what_is_sent_comes_back(connect: Connect, version: ssl.TLSVersion, size: int) -> None:
    data = bytes(index * 7 % 256 for index in range(size))
    async with await connect(version=version) as stream, trio.open_nursery() as sending:
        sending.start_soon(stream.send_all, data)
        assert await receive_exactly(stream, size) == data


@pytest.mark.parametrize("version", VERSIONS)
async def test_the_clients_certificate_chain_is_available(
    connect: Connect, shown: list[ClientCertificate | None], version: ssl.TLSVersion
) -> None:
    issued = Authority(now=NOW).delegate().issue()
    for certificate in (issued, None):
        async with await connect(certificate, version) as stream:
            await stream.send_all(b"x")
            await stream.receive_some(1)
    first, second = shown
    assert first is not None
    assert first.leaf == issued.der
    assert first.intermediates[0] == issued.shown.intermediates[0]
    assert second is None


def resumed(
    address: Address, context: ssl.SSLContext, session: ssl.SSLSession | None
) -> tuple[bool, ssl.SSLSession | None]:
    """Whether the server resumes this session, and the session of the new connection. `ssl`'s own client, in a thread:
    trio's does not know sessions."""
    with (
        socket.create_connection((address.host, address.port), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname=address.host, session=session) as stream,
    ):
        stream.sendall(b"x")
        if stream.recv(1) != b"x":  # the tickets of TLS 1.3 come before
            raise ConnectionError("the server has closed")
        return bool(stream.session_reused), stream.session


@pytest.fixture
def resume(address: Address, tmp_path: Path) -> "Resume":
    async def resume(
        context: ssl.SSLContext, session: ssl.SSLSession | None = None
    ) -> tuple[bool, ssl.SSLSession | None]:
        return await trio.to_thread.run_sync(resumed, address, context, session)

    return resume


Resume = Callable[..., Awaitable[tuple[bool, ssl.SSLSession | None]]]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("has_certificate", [False, True])
async def test_a_session_is_resumed_with_all_that_its_peer_has_shown(
    resume: Resume,
    tmp_path: Path,
    shown: list[ClientCertificate | None],
    version: ssl.TLSVersion,
    has_certificate: bool,
) -> None:
    issued = Authority(now=NOW).delegate().issue() if has_certificate else None
    context = client_context(tmp_path, issued, version)
    session = None
    for is_resumed in (False, True, True):
        found, session = await resume(context, session)
        assert found is is_resumed
    assert len(shown) == 3
    assert shown[0] == shown[1] == shown[2]
    assert (shown[0] is not None) is has_certificate
    if shown[2] is not None:
        assert len(shown[2].intermediates) == 1


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_peer_whose_certificates_were_forgotten_is_asked_for_them_again(
    resume: Resume,
    tmp_path: Path,
    shown: list[ClientCertificate | None],
    version: ssl.TLSVersion,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Strangers may show as many certificates as they like."""
    monkeypatch.setattr("protocols.streams.tls._REMEMBERED", 2)
    authority = Authority(now=NOW).delegate()
    context = client_context(tmp_path, authority.issue(), version)
    _, session = await resume(context)
    for _ in range(2):
        await resume(client_context(tmp_path, authority.issue("stranger"), version))
    with pytest.raises(OSError, match=r"closed|reset|EOF|alert"):
        await resume(context, session)
    is_resumed, _ = await resume(context, session)
    assert not is_resumed
    assert len(shown) == 4
    assert shown[3] == shown[0]


async def test_a_session_of_another_context_is_not_resumed(
    nursery: trio.Nursery, tmp_path: Path, resume: Resume
) -> None:
    """A reload of the certificates and a restart make another context."""
    context = client_context(tmp_path, None, ssl.TLSVersion.TLSv1_2)
    _, session = await resume(context)
    other = PeerContext(tmp_path / "cert.pem", tmp_path / "key.pem", required=False)

    async def echo(stream: Stream) -> None:
        await stream.send_all(await stream.receive_some(1))

    serve = partial(serve_tcp, Address("127.0.0.1", 0), echo, protocol="echo", ssl_context=other)
    address = await nursery.start(partial(serve, refusals=new_refusals(), life=Life(), connections=nursery))
    is_resumed, _ = await trio.to_thread.run_sync(resumed, address, context, session)
    assert not is_resumed


@pytest.mark.parametrize("says_goodbye", [True, False])
async def test_the_end_of_a_connection_is_not_logged_as_an_error(
    connect: Connect, shown: list[ClientCertificate | None], says_goodbye: bool
) -> None:
    with capture_logs() as logs, trio.fail_after(10):
        stream = await connect()
        await stream.send_all(b"x")
        await stream.receive_some(1)
        if says_goodbye:
            await stream.aclose()
        else:
            await stream.transport_stream.send_eof()
            assert await stream.transport_stream.receive_some(1) == b""  # the server has closed, too
            await trio.aclose_forcefully(stream)
    assert logs == []


@pytest.mark.parametrize("hello", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff" + b"\0" * 100, b"\0" * 10_000])
async def test_a_client_without_tls_is_disconnected_without_an_error_in_the_log(address: Address, hello: bytes) -> None:
    with capture_logs() as logs, trio.fail_after(10):
        async with await trio.open_tcp_stream(address.host, address.port) as stream:
            await stream.send_all(hello)
            await stream.send_eof()
            with suppress(trio.BrokenResourceError):  # reset, which is as good as closed
                while await stream.receive_some(65_536):
                    pass
    assert [(line["event"], line["log_level"], line["peer"]) for line in logs] == [("tls_refused", "info", "127.0.0.1")]


async def test_a_server_needs_a_certificate_and_its_key(tmp_path: Path) -> None:
    contexts(tmp_path)
    Authority(now=NOW).own.files(tmp_path, "other")
    for certificate, key in (("cert.pem", "other.key"), ("missing.pem", "key.pem"), ("key.pem", "key.pem")):
        with pytest.raises(OSError, match="cannot use certificate"):
            PeerContext(tmp_path / certificate, tmp_path / key, required=False)


@pytest.mark.parametrize("version", VERSIONS)
async def test_alpn_says_mqtt_to_those_who_offer_it_and_refuses_nobody(
    address: Address, tmp_path: Path, version: ssl.TLSVersion
) -> None:
    for offered, chosen in ALPN:
        context = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
        context.minimum_version = context.maximum_version = version
        if offered:
            context.set_alpn_protocols(offered)
        stream = await trio.open_ssl_over_tcp_stream(address.host, address.port, ssl_context=context)
        await stream.send_all(b"x")
        assert await stream.receive_some(1) == b"x"
        assert stream.selected_alpn_protocol() == chosen
        await stream.aclose()
