"""`trunkline receive`: a callback on this machine that prints what it gets (reference 11.6)."""

import base64
import hashlib
import hmac
import os
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import click
import h11
import httpx
import msgspec
import trio
from oauthlib.oauth1 import SIGNATURE_HMAC_SHA1
from oauthlib.oauth1.rfc5849 import signature as oauth
from oauthlib.oauth1.rfc5849.utils import parse_authorization_header

from protocols.cli.failures import CommandError, leaves

_MOST_BYTES: Final = 1024 * 1024
_TIMEOUT: Final = 30.0


@dataclass
class Receiver:
    """Receiver of callbacks, with the keys and secrets to check them."""

    service: str
    status: int
    client_secret: str
    webhook_secret: str

    def take(self, url: str, headers: Mapping[str, str], body: bytes) -> Mapping[str, Any] | None:
        """Print what came. Return a handshake, for `validate`."""
        try:
            members = msgspec.json.decode(body, type=dict[str, Any])
        except msgspec.DecodeError:
            click.echo("not JSON", err=True)
            return None
        if "nonce" in members:
            return members
        for problem in self.problems(url, headers, body):
            click.echo(f"signature: {problem}", err=True)
        click.echo(body)
        return None

    def problems(self, url: str, headers: Mapping[str, str], body: bytes) -> list[str]:
        """The problems of the signatures that can be checked."""
        found = []
        if self.client_secret and not _is_signed(url, headers.get("authorization", ""), self.client_secret):
            found.append("the OAuth signature is not that of this client secret")
        if self.webhook_secret and not _has_webhook_signature(headers, body, self.webhook_secret):
            found.append("webhook-signature is not that of this webhook secret")
        return found

    async def validate(self, handshake: Mapping[str, Any]) -> None:
        path = f"{self.service}/subscriptions/{handshake.get('subscriptionId')}/validate"
        async with httpx.AsyncClient(timeout=_TIMEOUT) as client:
            answer = await client.post(path, json={"aid": handshake.get("aid"), "nonce": handshake["nonce"]})
        said = "validated" if answer.status_code == 200 else f"not validated: {answer.text}"
        click.echo(f"subscription {handshake.get('subscriptionId')} {said}", err=True)


@click.command()
@click.option("--port", type=click.IntRange(0, 65535), default=9000, show_default=True)
@click.option("--service", metavar="URL", default="http://127.0.0.1:8080/v1.1", show_default=True)
@click.option(
    "--status", type=click.IntRange(200, 599), default=200, show_default=True, help="Answer with this status."
)
def receive(port: int, service: str, status: int) -> None:
    """Print what a callback gets, one line of JSON for each notification.

    The handshake of a new subscription is answered by validating it at the service. The environment variables
    TRUNKLINE_CLIENT_SECRET and TRUNKLINE_WEBHOOK_SECRET hold secrets to check signatures with. With a user token in
    TRUNKLINE_TOKEN, a subscription to all messages of the user exists while the command runs; the daemon has to allow
    private addresses for that.
    """
    receiver = Receiver(
        service.rstrip("/"),
        status,
        os.environ.get("TRUNKLINE_CLIENT_SECRET", ""),
        os.environ.get("TRUNKLINE_WEBHOOK_SECRET", ""),
    )
    try:
        trio.run(partial(_receive, receiver, port, os.environ.get("TRUNKLINE_TOKEN", "")))
    except Exception as error:  # trio wraps errors in groups; what is not explained is raised again
        for leaf in leaves(error):
            if isinstance(leaf, OSError | httpx.HTTPError | _RefusedError):
                raise CommandError(str(leaf)) from error
        raise


class _RefusedError(Exception):
    """The service refused a call. The text is one line."""


async def _receive(receiver: Receiver, port: int, token: str) -> None:
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, partial(_serve, receiver), port, host="127.0.0.1"))
        bound = listeners[0].socket.getsockname()[1]
        click.echo(f"listening on http://localhost:{bound}/", err=True)
        async with _subscription(receiver, bound, token):
            with trio.open_signal_receiver(signal.SIGTERM) as signals:  # Ctrl-C cancels as it is
                async for _ in signals:
                    break
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def _subscription(receiver: Receiver, port: int, token: str) -> AsyncIterator[None]:
    """A subscription to all messages of the token's user, while the block lasts; without a token nothing."""
    if not token:
        yield
        return
    headers = {"Authorization": f"bearer {token}"}
    async with httpx.AsyncClient(base_url=receiver.service, headers=headers, timeout=_TIMEOUT) as client:
        uid = (await _asked(client, "GET", "/users/self"))["id"]
        wanted = {"messageType": "message", "uid": uid, "callbackUrl": f"http://localhost:{port}/"}
        path = f"/subscriptions/{(await _asked(client, 'POST', '/subscriptions', json=wanted))['id']}"
        try:
            receiver.webhook_secret = (await _asked(client, "POST", f"{path}/secret"))["webhookSecret"]
            yield
        finally:
            with trio.move_on_after(_TIMEOUT, shield=True):
                await client.delete(path)


async def _asked(client: httpx.AsyncClient, method: str, path: str, **request: Any) -> dict[str, Any]:
    answer = await client.request(method, path, **request)
    if answer.status_code != 200:
        raise _RefusedError(f"{method} {path}: {answer.status_code} {answer.text[:300]}")
    data: dict[str, Any] = answer.json()["data"]
    return data


async def _serve(receiver: Receiver, stream: trio.SocketStream) -> None:
    """Serve the requests of one connection, one after the other."""
    connection = h11.Connection(h11.SERVER)
    port = stream.socket.getsockname()[1]
    try:
        while await _serve_one(receiver, stream, connection, port):
            connection.start_next_cycle()
    except (h11.ProtocolError, trio.BrokenResourceError):
        return


async def _serve_one(receiver: Receiver, stream: trio.SocketStream, connection: h11.Connection, port: int) -> bool:
    """Return whether another request may follow."""
    head: h11.Request | None = None
    body = bytearray()
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await stream.receive_some(_MOST_BYTES))
        elif isinstance(event, h11.Request):
            head = event
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > _MOST_BYTES:
                return False
        elif isinstance(event, h11.EndOfMessage) and head is not None:
            break
        else:
            return False
    headers = {name.decode("ascii"): value.decode("latin-1") for name, value in head.headers}
    url = f"http://{headers.get('host', f'localhost:{port}')}{head.target.decode('latin-1')}"
    handshake = receiver.take(url, headers, bytes(body))  # before the answer: what is answered is on the screen
    answer = h11.Response(status_code=receiver.status, headers=[("Content-Length", "0")])
    await stream.send_all((connection.send(answer) or b"") + (connection.send(h11.EndOfMessage()) or b""))
    if handshake is not None:
        await receiver.validate(handshake)
    return connection.our_state is h11.DONE


def _is_signed(url: str, authorization: str, secret: str) -> bool:
    """RFC 5849: the signature of a POST to `url` by HMAC-SHA1, with the secret as both secrets."""
    try:
        given = dict(parse_authorization_header(authorization))
    except ValueError:
        return False
    query = httpx.URL(url).query.decode("ascii")
    parameters = oauth.collect_parameters(uri_query=query, headers={"Authorization": authorization})
    base = oauth.signature_base_string("POST", oauth.base_string_uri(url), oauth.normalize_parameters(parameters))
    key = f"{oauth.utils.escape(secret)}&{oauth.utils.escape(secret)}".encode()
    expected = base64.b64encode(hmac.new(key, base.encode(), hashlib.sha1).digest()).decode()
    is_method = given.get("oauth_signature_method") == SIGNATURE_HMAC_SHA1
    return is_method and hmac.compare_digest(expected, oauth.utils.unescape(given.get("oauth_signature", "")))


def _has_webhook_signature(headers: Mapping[str, str], body: bytes, secret: str) -> bool:
    """Standard Webhooks: one of the signatures is that of the secret."""
    signed = f"{headers.get('webhook-id', '')}.{headers.get('webhook-timestamp', '')}.".encode() + body
    key = base64.b64decode(secret.removeprefix("whsec_"))
    expected = "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    return any(hmac.compare_digest(expected, one) for one in headers.get("webhook-signature", "").split(" "))
