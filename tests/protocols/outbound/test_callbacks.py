"""Notifications on the wire: their JSON, their signatures, and callbacks that misbehave (reference 11.3 to 11.5)."""

import json
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import h11
import pytest
import trio
from oauthlib.oauth1 import Client
from standardwebhooks import Webhook, WebhookVerificationError

from broker.envelope import Message
from broker.subscriptions.port import AttemptOutcome, Callback, CallbackNotification
from broker.subscriptions.secrets import new_webhook_secret
from protocols.cli.receive import Receiver
from protocols.outbound.callbacks import HttpCallbacks, oauth_headers
from protocols.outbound.http import OutboundHttp
from protocols.outbound.tls import client_context
from storage.keys import Milliseconds, Position
from tests.protocols.http.certificates import contexts
from tests.rows import each_row

AID, SECRET = "aa" * 16, "s3cret&%"
MESSAGE = Message(
    Position(7), "0" * 32, "11" * 16, "dt1", "ada0" * 8, "0a" * 16, Milliseconds(5), Milliseconds(6), 1, "{}"
)
NOTIFICATION = CallbackNotification("ab" * 16, 9, "message", "cd" * 16, {"uid": "ada0" * 8}, 5, 5, [MESSAGE])

Serve = Callable[..., Awaitable[int]]


@pytest.fixture
def requests() -> list[tuple[h11.Request, bytes]]:
    return []


@pytest.fixture
def connections() -> list[int]:
    return []


@pytest.fixture
def serve(nursery: trio.Nursery, requests: list[tuple[h11.Request, bytes]], connections: list[int]) -> Serve:
    """A callback that answers every request with these bytes, on kept connections; None never answers. Its port."""

    async def start(answer: bytes | None, context: Any = None) -> int:
        async def converse(stream: trio.abc.Stream) -> None:
            connections.append(1)
            if context is not None:
                stream = trio.SSLStream(stream, context, server_side=True, https_compatible=True)
            state, head, body = h11.Connection(h11.SERVER), None, b""
            try:
                while True:
                    event = state.next_event()
                    if event is h11.NEED_DATA:
                        state.receive_data(bytes(await stream.receive_some()))
                    elif isinstance(event, h11.Request):
                        head, body = event, b""
                    elif isinstance(event, h11.Data):
                        body += event.data
                    elif isinstance(event, h11.EndOfMessage):
                        assert head is not None
                        requests.append((head, body))
                        if answer is None:
                            await trio.sleep_forever()
                        assert answer is not None
                        await stream.send_all(answer)
                        state = h11.Connection(h11.SERVER)
                    else:
                        return
            except (trio.BrokenResourceError, h11.RemoteProtocolError):
                return
            finally:
                await trio.aclose_forcefully(stream)

        listeners = await nursery.start(partial(trio.serve_tcp, converse, 0, host="127.0.0.1"))
        port: int = listeners[0].socket.getsockname()[1]
        return port

    return start


def callback(port: int, *, scheme: str = "http", secrets: tuple[str, ...] = ()) -> Callback:
    return Callback(f"{scheme}://127.0.0.1:{port}/take?b=2&a=1%20x", AID, SECRET, secrets)


def over(context: Any = None) -> HttpCallbacks:
    return HttpCallbacks(OutboundHttp(context or client_context(""), allow_private=True, idle_seconds=30))


@pytest.fixture
async def callbacks(nursery: trio.Nursery) -> HttpCallbacks:
    opened = over()
    await nursery.start(opened.keep_forever)
    return opened


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"


async def test_the_notification_of_the_reference(
    callbacks: HttpCallbacks, serve: Serve, requests: list[tuple[h11.Request, bytes]]
) -> None:
    outcome = await callbacks.notify(callback(await serve(OK)), NOTIFICATION)
    assert outcome == AttemptOutcome(http_status=200)
    ((head, body),) = requests
    headers = {name.decode(): value.decode() for name, value in head.headers}
    assert headers["content-type"] == "application/json; charset=utf-8"
    assert headers["authorization"].startswith("OAuth ")
    assert not [name for name in headers if name.startswith("webhook-")]
    sent = json.loads(body)
    assert list(sent) == ["id", "ts", "type", "subscriptionId", "subscriptionQuery", "startDate", "endDate", "data"]
    assert sent["data"][0]["mid"] == MESSAGE.mid
    assert b" " not in body


async def test_the_oauth_signature_is_that_of_rfc_5849(
    callbacks: HttpCallbacks, serve: Serve, requests: list[tuple[h11.Request, bytes]]
) -> None:
    """Checked as `trunkline receive` checks it, with oauthlib's functions for servers."""
    port = await serve(OK)
    await callbacks.notify(callback(port), NOTIFICATION)
    ((head, body),) = requests
    headers = {name.decode(): value.decode() for name, value in head.headers}
    parameters = dict(part.split("=", 1) for part in headers["authorization"].removeprefix("OAuth ").split(", "))
    assert parameters["oauth_consumer_key"] == parameters["oauth_token"] == f'"{AID}"'
    assert parameters["oauth_signature_method"] == '"HMAC-SHA1"'
    url = callback(port).url
    assert Receiver("", 200, SECRET, "").problems(url, headers, body) == []
    assert Receiver("", 200, "other", "").problems(url, headers, body) != []
    assert Receiver("", 200, SECRET, "").problems(url.replace("b=2", "b=3"), headers, body) != []
    assert dict(parse_qsl(urlsplit(url).query)) == {"b": "2", "a": "1 x"}


async def test_the_standard_webhooks_library_verifies_also_while_a_secret_is_rotated(
    callbacks: HttpCallbacks, serve: Serve, requests: list[tuple[h11.Request, bytes]]
) -> None:
    old, new, other = (new_webhook_secret() for _ in range(3))
    port = await serve(OK)
    await callbacks.notify(callback(port, secrets=(old,)), NOTIFICATION)
    await callbacks.notify(callback(port, secrets=(new, old)), NOTIFICATION)
    for (head, body), secrets in zip(requests, ((old,), (old, new)), strict=True):
        headers = {name.decode(): value.decode() for name, value in head.headers}
        assert headers["webhook-id"] == NOTIFICATION.id
        for secret in secrets:
            assert Webhook(secret).verify(body, headers)["id"] == NOTIFICATION.id
            assert Receiver("", 200, "", secret).problems("", headers, body) == []
        with pytest.raises(WebhookVerificationError):
            Webhook(other).verify(body, headers)
        assert Receiver("", 200, "", other).problems("", headers, body) != []


async def test_a_connection_is_kept_for_the_next_notification(
    callbacks: HttpCallbacks, serve: Serve, connections: list[int]
) -> None:
    port = await serve(OK)
    for _ in range(3):
        assert (await callbacks.notify(callback(port), NOTIFICATION)).is_delivered
    assert len(connections) == 1


@each_row(
    ("answer", "status", "excerpt"),
    [
        (b"HTTP/1.1 500 Oops\r\nContent-Length: 5\r\n\r\na\nb\x00c", 500, "a b c"),
        (b"HTTP/1.1 410 Gone\r\nContent-Length: 0\r\n\r\n", 410, None),
        (b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n", 302, None),
        (b"HTTP/1.1 204 No Content\r\n\r\n", 204, None),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 10000000\r\n\r\n" + b"x" * 100_000, 200, None),
        (b"HTTP/1.1 500 Oops\r\nContent-Length: 10000000\r\n\r\n" + b"x" * 100_000, 500, "x" * 200),
    ],
    ids=["500", "410", "redirect", "204", "10 MB", "10 MB of error"],
)
async def test_answers(callbacks: HttpCallbacks, serve: Serve, answer: bytes, status: int, excerpt: str | None) -> None:
    outcome = await callbacks.notify(callback(await serve(answer)), NOTIFICATION)
    assert outcome == AttemptOutcome(http_status=status, excerpt=excerpt)


async def test_a_callback_that_never_answers_is_a_failure_after_15_s(
    callbacks: HttpCallbacks, serve: Serve, autojump_clock: trio.testing.MockClock
) -> None:
    outcome = await callbacks.notify(callback(await serve(None)), NOTIFICATION)
    assert outcome == AttemptOutcome(error="no answer within 15 s")


async def test_a_certificate_that_does_not_verify_is_a_failure(
    callbacks: HttpCallbacks, nursery: trio.Nursery, serve: Serve, tmp_path: Path
) -> None:
    server, client = contexts(tmp_path)
    port = await serve(OK, server)
    outcome = await callbacks.notify(callback(port, scheme="https"), NOTIFICATION)
    assert outcome.http_status is None
    assert "CERTIFICATE_VERIFY_FAILED" in outcome.text
    trusting = over(client)
    await nursery.start(trusting.keep_forever)
    assert (await trusting.notify(callback(port, scheme="https"), NOTIFICATION)).is_delivered


async def test_a_handshake_has_no_signature(
    callbacks: HttpCallbacks, serve: Serve, requests: list[tuple[h11.Request, bytes]]
) -> None:
    port = await serve(OK)
    await callbacks.shake_hands(callback(port).url, application_id=AID, subscription_id="s", nonce="n")
    ((head, body),) = requests
    assert json.loads(body) == {"aid": AID, "subscriptionId": "s", "nonce": "n"}
    assert b"authorization" not in {name for name, _ in head.headers}


async def test_private_addresses_are_refused_at_creation_and_at_delivery() -> None:
    callbacks = HttpCallbacks(OutboundHttp(client_context(""), allow_private=False))
    for url in ("https://127.0.0.1/", "https://[::1]/x", "https://localhost/", "http://93.184.215.14/"):
        assert await callbacks.check(url) is not None
        assert not (await callbacks.notify(Callback(url, AID, SECRET), NOTIFICATION)).is_delivered
    assert await callbacks.check("https://93.184.215.14/") is None


@pytest.mark.parametrize(
    "url",
    [
        "https://app.example.org/callback",
        "https://app.example.org:8443/a%2Fb/?x=1&a=%C3%BC&a=+&y=~-._&z",
        "https://APP.example.org:443?q=%26%3D&oauth_x=1",
    ],
)
def test_the_signature_is_that_of_oauthlib(url: str) -> None:
    header = oauth_headers(Callback(url, AID, SECRET), now=1_500_000_000.9)["Authorization"]
    given = dict(part.split("=", 1) for part in header.removeprefix("OAuth ").split(", "))
    client = Client(
        AID,
        client_secret=SECRET,
        resource_owner_key=AID,
        resource_owner_secret=SECRET,
        nonce=given["oauth_nonce"].strip('"'),
        timestamp="1500000000",
    )
    expected = client.sign(url, http_method="POST")[1]["Authorization"]
    assert set(header.removeprefix("OAuth ").split(", ")) == set(expected.removeprefix("OAuth ").split(", "))


async def test_callbacks_of_an_application_that_hang_hold_up_no_other_application(
    nursery: trio.Nursery, serve: Serve, requests: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them may be at another host, so that the places of one host do not end."""
    monkeypatch.setattr("protocols.outbound.callbacks.CALLBACKS_PER_APPLICATION", 3)
    callbacks = HttpCallbacks(OutboundHttp(client_context(""), allow_private=True))
    for port in [await serve(None) for _ in range(5)]:
        nursery.start_soon(callbacks.notify, callback(port), NOTIFICATION)
    while len(requests) < 3:  # noqa: ASYNC110 - sockets
        await trio.sleep(0.001)
    other = Callback(f"http://127.0.0.1:{await serve(OK)}/", "b" * 32, SECRET)
    assert (await callbacks.notify(other, NOTIFICATION)).is_delivered
    assert len(requests) == 3 + 1
