"""Notifications to callbacks: their JSON, their signatures, and the bounds of the answers (reference 11.3 and 11.4)."""

import base64
import hashlib
import hmac
import secrets
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import lru_cache
from typing import Any, Final
from urllib.parse import quote, urlsplit

import msgspec
import trio
from oauthlib.oauth1.rfc5849 import signature as oauth

from broker.subscriptions.port import AttemptOutcome, Callback, CallbackNotification
from config.limits import (
    CALLBACK_ANSWER_BYTES,
    CALLBACK_EXCERPT_CHARACTERS,
    CALLBACK_SECONDS,
    CALLBACKS_PER_APPLICATION,
    CALLBACKS_PER_HOST,
)
from config.settings import Settings
from protocols.outbound.http import HttpFailedError, OutboundHttp
from protocols.rendering import shown_entry

_IDLE_SECONDS: Final = 30.0
_CHECK_SECONDS: Final = 5.0
_CONTENT_TYPE: Final = "application/json; charset=utf-8"
#: Placeholders of nonce and time in a base string. No address is likely to have these letters in it.
_NONCE: Final = "n0nce" + secrets.token_hex(16)
_TIMESTAMP: Final = "t1me" + secrets.token_hex(16)
_encode: Final = msgspec.json.Encoder().encode


def http_callbacks(settings: Settings, tls: ssl.SSLContext) -> "HttpCallbacks":
    allow_private = settings.outbound.allow_private_addresses
    return HttpCallbacks(OutboundHttp(tls, allow_private=allow_private, idle_seconds=_IDLE_SECONDS))


class HttpCallbacks:
    def __init__(
        self, http: OutboundHttp, *, seconds: float = CALLBACK_SECONDS, now: Callable[[], float] = time.time
    ) -> None:
        """`now` gives seconds since the epoch."""
        self._http = http
        self._seconds = seconds
        self._now = now
        self._of_hosts = _Places(CALLBACKS_PER_HOST)
        self._of_applications = _Places(CALLBACKS_PER_APPLICATION)

    async def check(self, url: str) -> str | None:
        try:
            await self._http.check(url, seconds=_CHECK_SECONDS)
        except HttpFailedError as error:
            return str(error)
        return None

    async def notify(self, callback: Callback, notification: CallbackNotification) -> AttemptOutcome:
        body = notification_body(notification)
        # Signed after the wait, because the signature has the time.
        async with self._place(callback.application_id, callback.url):
            try:
                headers = oauth_headers(callback, now=self._now())
            except ValueError as error:
                return AttemptOutcome(error=f"cannot be signed: {error}"[:CALLBACK_EXCERPT_CHARACTERS])
            headers |= webhook_headers(notification.id, body, callback.webhook_secrets, now=self._now())
            return await self._post(callback.url, headers, body)

    async def shake_hands(self, url: str, *, application_id: str, subscription_id: str, nonce: str) -> AttemptOutcome:
        body = _encode({"aid": application_id, "subscriptionId": subscription_id, "nonce": nonce})
        async with self._place(application_id, url):
            return await self._post(url, {}, body)

    async def _post(self, url: str, headers: Mapping[str, str], body: bytes) -> AttemptOutcome:
        try:
            answer = await self._http.send(
                "POST",
                url,
                headers={"Content-Type": _CONTENT_TYPE, **headers},
                body=body,
                seconds=self._seconds,
                most_bytes=CALLBACK_ANSWER_BYTES,
                may_cut=True,
            )
        except HttpFailedError as error:
            return AttemptOutcome(error=str(error))
        is_success = 200 <= answer.status < 300
        return AttemptOutcome(http_status=answer.status, excerpt=None if is_success else _excerpt(answer.body))

    @asynccontextmanager
    async def _place(self, application_id: str, url: str) -> AsyncIterator[None]:
        """One of the places of this application and of this host: callbacks that hang hold up no others."""
        async with self._of_applications.one(application_id), self._of_hosts.one(urlsplit(url).netloc.lower()):
            yield

    async def keep_forever(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        try:
            while True:
                await trio.sleep(_IDLE_SECONDS)
                await self._http.close_idle()
        finally:
            with trio.CancelScope(shield=True):
                await self._http.close()


class _Places:
    """Places for calls that are under way, a number for each name."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._limiters: dict[str, trio.CapacityLimiter] = {}
        self._users: Counter[str] = Counter()  # how many tasks use or wait for a place

    @asynccontextmanager
    async def one(self, name: str) -> AsyncIterator[None]:
        limiter = self._limiters.setdefault(name, trio.CapacityLimiter(self._most))
        self._users[name] += 1
        try:
            async with limiter:
                yield
        finally:
            self._users[name] -= 1
            if not self._users[name]:
                del self._users[name], self._limiters[name]


def notification_body(notification: CallbackNotification) -> bytes:
    """The JSON of reference 11.3. The entries are those of REST."""
    members: dict[str, Any] = {
        "id": notification.id,
        "ts": notification.ts,
        "type": notification.type,
        "subscriptionId": notification.subscription_id,
        "subscriptionQuery": notification.query,
        "startDate": notification.start_date,
        "endDate": notification.end_date,
    }
    if notification.entries is not None:
        members["data"] = [msgspec.Raw(shown_entry(one)) for one in notification.entries]
    return _encode(members)


def oauth_headers(callback: Callback, *, now: float) -> dict[str, str]:
    """The signature of RFC 5849; the application is consumer and token. Raises ValueError for an unusual address."""
    nonce, timestamp = secrets.token_hex(16), str(int(now))
    base, key = _base_and_key(callback.url, callback.application_id, callback.client_secret)
    # Both consist of letters and digits, which no encoding changes.
    signed = base.replace(_NONCE, nonce, 1).replace(_TIMESTAMP, timestamp, 1)
    digest = hmac.new(key, signed.encode("ascii"), hashlib.sha1).digest()
    members = _oauth_members(callback.application_id, nonce, timestamp)
    members.append(("oauth_signature", quote(base64.b64encode(digest), safe="")))
    return {"Authorization": "OAuth " + ", ".join(f'{name}="{value}"' for name, value in members)}


def _oauth_members(application_id: str, nonce: str, timestamp: str) -> list[tuple[str, str]]:
    return [
        ("oauth_consumer_key", application_id),
        ("oauth_token", application_id),
        ("oauth_signature_method", "HMAC-SHA1"),
        ("oauth_timestamp", timestamp),
        ("oauth_nonce", nonce),
        ("oauth_version", "1.0"),
    ]


@lru_cache(maxsize=4096)
def _base_and_key(url: str, application_id: str, secret: str) -> tuple[str, bytes]:
    """The base string of RFC 5849 with places for nonce and time, and the key; oauthlib takes half of a delivery to
    make them."""
    parameters = oauth.collect_parameters(uri_query=urlsplit(url).query)
    parameters += _oauth_members(application_id, _NONCE, _TIMESTAMP)
    base = oauth.signature_base_string("POST", oauth.base_string_uri(url), oauth.normalize_parameters(parameters))
    escaped = quote(secret, safe="~")
    return base, f"{escaped}&{escaped}".encode("ascii")


def webhook_headers(id_: str, body: bytes, webhook_secrets: tuple[str, ...], *, now: float) -> dict[str, str]:
    """The headers of Standard Webhooks, with one signature for each secret; none without a secret."""
    if not webhook_secrets:
        return {}
    timestamp = str(int(now))
    signed = f"{id_}.{timestamp}.".encode() + body
    return {
        "webhook-id": id_,
        "webhook-timestamp": timestamp,
        "webhook-signature": " ".join(_signatures(signed, webhook_secrets)),
    }


def _signatures(signed: bytes, webhook_secrets: tuple[str, ...]) -> Iterator[str]:
    for secret in webhook_secrets:
        key = base64.b64decode(secret.removeprefix("whsec_"))
        yield "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


def _excerpt(body: bytes) -> str | None:
    text = body[: 4 * CALLBACK_EXCERPT_CHARACTERS].decode("utf-8", errors="replace")
    line = "".join(character if character.isprintable() else " " for character in text).strip()
    return line[:CALLBACK_EXCERPT_CHARACTERS] or None
