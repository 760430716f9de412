"""Forms that are too long for the token endpoints are refused at their heads, as Hypercorn and Quart would do it."""

import re
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
import trio

from broker.services import Services
from broker.trace.origin import current_origin
from config.limits import MAX_FORM_BYTES
from config.settings import Address, Http, Settings
from protocols.http.hypercorn_adapter import HypercornAdapter
from protocols.http.oversized_forms import OversizedForms
from protocols.http.server import serve_http
from protocols.metrics.vitals import Vitals
from tests.factories import World
from tests.protocols.http.certificates import contexts
from tests.protocols.http.conftest import repeat_head

pytestmark = pytest.mark.slow


ANY: Final = Address("127.0.0.1", 0)
TOO_LONG: Final = (MAX_FORM_BYTES + 1, 1024 * 1024 - 100, 3_000_000, 10**12)


def form(path: str, length: int | str, *more: str, method: str = "POST") -> bytes:
    lines = (f"{method} {path} HTTP/1.1", "Host: localhost:1234", *more, f"Content-Length: {length}", "", "a=b")
    return "\r\n".join(lines).encode()


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return Settings(state_dir=settings.state_dir, http=Http(hsts_seconds=60, trusted_proxies=("127.0.0.0/8",)))


@pytest.fixture
def on_the_slow_path(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The heads that take the slow path."""
    heads, serve = list[bytes](), HypercornAdapter.serve

    async def noted(adapter: HypercornAdapter, head: bytes, connection: Any) -> Any:
        heads.append(head)
        return await serve(adapter, head, connection)

    monkeypatch.setattr(HypercornAdapter, "serve", noted)
    return heads


def never(*_: object) -> None:
    return None


async def ask(stream: trio.abc.Stream, sent: bytes) -> bytes:
    """All that comes until the server closes, without the date."""
    await stream.send_all(sent)
    received = b""
    while more := await stream.receive_some(65_536):
        received += more
    return re.sub(rb"\r\ndate: [^\r]*", b"", received)


async def test_both_paths_refuse_a_long_form_alike(
    services: Services,
    world: World,
    nursery: trio.Nursery,
    on_the_slow_path: list[bytes],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    server_tls, client_tls = contexts(tmp_path)
    noted = list[tuple[object, ...]]()
    monkeypatch.setattr(
        services.core.refusals, "note", lambda event, **about: noted.append((event, about, current_origin()))
    )
    for root, is_accounts, tls in (
        ("/accounts", False, None),
        ("", True, None),
        ("/accounts", False, server_tls),
    ):
        vitals = Vitals(services.core)
        address = await nursery.start(
            partial(
                serve_http,
                services,
                ANY,
                nursery,
                websocket=repeat_head,
                is_accounts=is_accounts,
                ssl_context=tls,
                vitals=vitals,
            )
        )
        for sent in (
            *(form(f"{root}/token", length) for length in TOO_LONG),
            form(f"{root}/device/code?a=b", MAX_FORM_BYTES + 1, "X-Forwarded-For: 192.0.2.1", "Authorization: Basic x"),
        ):
            answers = []
            for is_short in (True, False):
                with monkeypatch.context() as patch:
                    if not is_short:
                        patch.setattr(OversizedForms, "refusal", never)
                    stream: trio.abc.Stream = await trio.open_tcp_stream(address.host, address.port)
                    if tls is not None:
                        stream = trio.SSLStream(stream, client_tls, server_hostname="127.0.0.1", https_compatible=True)
                    async with stream:
                        answers.append(await ask(stream, sent))
                assert len(on_the_slow_path) == (0 if is_short else 1)
                on_the_slow_path.clear()
            assert answers[0].startswith(b"HTTP/1.1 413 "), sent
            assert answers[0] == answers[1], sent
            assert noted[0] == noted[1]
            assert len(noted) == 2
            noted.clear()
        (traffic,) = vitals.traffic.values()
        assert traffic.statuses == {413: 10}


async def test_all_other_requests_take_the_slow_path(
    services: Services, world: World, nursery: trio.Nursery, on_the_slow_path: list[bytes]
) -> None:
    address = await nursery.start(partial(serve_http, services, ANY, nursery, websocket=repeat_head))
    for sent in (
        form("/accounts/token", 3),
        form("/token", 20_000),
        form("/accounts/token/", 20_000),
        form("/accounts/login", 20_000),
        form("/v1.1/devices", 20_000),
        form("/accounts/token", 20_000, "Expect: 100-continue"),
        form("/accounts/token", 20_000, "Transfer-Encoding: chunked"),
        form("/accounts/token", "+20000"),
        form("/accounts/token", 20_000, method="PUT"),
    ):
        async with await trio.open_tcp_stream(address.host, address.port) as stream:
            await stream.send_all(sent)
            assert (await stream.receive_some()).startswith(b"HTTP/1.1 "), sent
        assert on_the_slow_path == [sent]
        on_the_slow_path.clear()


async def test_who_sends_all_of_a_long_form_reads_the_answer(
    services: Services, world: World, nursery: trio.Nursery, on_the_slow_path: list[bytes]
) -> None:
    address = await nursery.start(partial(serve_http, services, ANY, nursery, websocket=repeat_head))
    for length in (900_000, 3_000_000):
        async with await trio.open_tcp_stream(address.host, address.port) as stream:
            head = form("/accounts/token", length)
            await stream.send_all(head + bytes(length - len(b"a=b")))
            assert (await stream.receive_some()).startswith(b"HTTP/1.1 413 ")
    assert not on_the_slow_path
