"""Headers of a trusted proxy about its clients (reference 25.4), and headers for browsers over TLS."""

from functools import partial
from pathlib import Path

import httpx
import pytest
import trio

from broker.services import Services
from config.settings import Address, Http, Limits, Settings
from protocols.http.server import serve_http
from protocols.streams.peers import current_peer
from tests.factories import World
from tests.protocols.http.certificates import contexts
from tests.protocols.http.conftest import receive_all
from tests.rows import each_row

BEHIND = Http(trusted_proxies=("127.0.0.0/8",))
WITH_HEADER = Http(trusted_proxies=("127.0.0.0/8",), proxy_protocol="required")
ADA, BOB = "203.0.113.7", "203.0.113.8"
CALLS = 2


@pytest.fixture
def http() -> Http:
    return BEHIND


@pytest.fixture
def settings(tmp_path: Path, http: Http) -> Settings:
    return Settings(state_dir=tmp_path, http=http, limits=Limits(calls_per_address=CALLS))


async def statuses(door: Address, *clients: dict[str, str]) -> list[int]:
    """Of one call each, which counts against the limit of its client's address."""
    async with httpx.AsyncClient(base_url=f"http://{door}") as api:
        return [(await api.options("/v1.1/users/self", headers=headers)).status_code for headers in clients]


async def test_limits_by_address_are_those_of_the_client(door: Address) -> None:
    ada, bob = {"X-Forwarded-For": f"6.6.6.6, {ADA}"}, {"Forwarded": f"for={BOB}"}
    assert await statuses(door, ada, ada, ada, bob, bob, bob, {}) == [200, 200, 429, 200, 200, 429, 200]


async def test_a_client_cannot_get_another_address(door: Address) -> None:
    """Neither in front of what the proxy has written, nor in the header that the proxy does not write."""
    names = [f"6.6.6.{number}" for number in range(3)]
    before = [{"X-Forwarded-For": f"{name}, {ADA}"} for name in names]
    assert await statuses(door, *before) == [200, 200, 429]
    beside = [{"X-Forwarded-For": BOB, "Forwarded": f"for={name}"} for name in names]
    assert await statuses(door, *beside) == [200, 200, 429]


@pytest.mark.parametrize("http", [Http(), Http(trusted_proxies=("192.0.2.0/24",))])
async def test_nobody_else_is_believed(door: Address) -> None:
    names = [{"X-Forwarded-For": f"6.6.6.{number}", "Forwarded": f"for=6.6.6.{number}"} for number in range(3)]
    assert await statuses(door, *names) == [200, 200, 429]


@each_row("name", ["X-Forwarded-For", "Forwarded"])
async def test_a_websocket_is_one_of_the_client(
    services: Services, world: World, nursery: trio.Nursery, name: str
) -> None:
    async def say_peer(_head: bytes, _early: bytes, stream: trio.abc.Stream) -> None:
        await stream.send_all(current_peer().address.encode())
        await stream.aclose()

    door: Address = await nursery.start(
        partial(serve_http, services, Address("127.0.0.1", 0), nursery, websocket=say_peer)
    )
    value = ADA if name == "X-Forwarded-For" else f"for={ADA}"
    async with await trio.open_tcp_stream(door.host, door.port) as stream:
        upgrade = f"Connection: Upgrade\r\nUpgrade: websocket\r\n{name}: {value}"
        await stream.send_all(f"GET /v1.1/live HTTP/1.1\r\nHost: a\r\n{upgrade}\r\n\r\n".encode())
        assert await receive_all(stream) == ADA.encode()


@each_row(("scheme", "is_secure"), [("https", True), ("http", False)])
async def test_cookies_are_secure_when_the_client_speaks_tls(door: Address, scheme: str, is_secure: bool) -> None:
    async with httpx.AsyncClient(base_url=f"http://{door}") as browser:
        page = await browser.get("/accounts/go", headers={"X-Forwarded-For": ADA, "X-Forwarded-Proto": scheme})
    assert ("Secure" in page.headers["Set-Cookie"]) is is_secure


@pytest.mark.parametrize("http", [WITH_HEADER])
async def test_the_proxy_protocol_names_the_client_of_http(door: Address) -> None:
    async def status(address: str) -> bytes:
        async with await trio.open_tcp_stream(door.host, door.port) as stream:
            header = f"PROXY TCP4 {address} 192.0.2.1 5000 80\r\n"
            head = (
                "OPTIONS /v1.1/users/self HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 6.6.6.6\r\nConnection: close\r\n\r\n"
            )
            await stream.send_all((header + head).encode())
            return (await receive_all(stream))[9:12]

    assert [await status(ADA) for _ in range(3)] == [b"200", b"200", b"429"]
    assert await status(BOB) == b"200"


# TLS


@pytest.mark.parametrize("http", [Http(hsts_seconds=3600), Http()])
async def test_browsers_are_told_to_come_back_over_tls_by_listeners_with_tls(
    services: Services, world: World, nursery: trio.Nursery, tmp_path: Path, http: Http
) -> None:
    server, client = contexts(tmp_path)
    serve = partial(serve_http, services, Address("127.0.0.1", 0), nursery, websocket=None)
    encrypted: Address = await nursery.start(partial(serve, ssl_context=server))
    plain: Address = await nursery.start(serve)
    wanted = f"max-age={http.hsts_seconds}" if http.hsts_seconds else None
    async with httpx.AsyncClient(verify=client) as browser:
        for path in ("/accounts/go", "/v1.1/users/self", "/nowhere"):
            over_tls = await browser.get(f"https://{encrypted}{path}")
            assert over_tls.headers.get("Strict-Transport-Security") == wanted
            assert "Strict-Transport-Security" not in (await browser.get(f"http://{plain}{path}")).headers


async def test_tls_offers_no_http_2(services: Services, world: World, nursery: trio.Nursery, tmp_path: Path) -> None:
    server, client = contexts(tmp_path)
    client.set_alpn_protocols(["h2", "http/1.1"])
    serve = partial(serve_http, services, Address("127.0.0.1", 0), nursery, websocket=None)
    door: Address = await nursery.start(partial(serve, ssl_context=server))
    stream = await trio.open_ssl_over_tcp_stream(door.host, door.port, ssl_context=client, https_compatible=True)
    async with stream:
        await stream.do_handshake()
        assert stream.selected_alpn_protocol() is None
        await stream.send_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        assert (await receive_all(stream)).startswith(b"HTTP/1.1 505")
