"""Secrets that notifications are signed with (reference 11.4)."""

import secrets
from base64 import b64encode
from collections.abc import Iterable
from typing import Final

import msgspec

from broker.clock import Clock
from broker.secrets import Vault
from broker.subscriptions.port import Callback
from broker.subscriptions.subscription import Subscription
from config.limits import WEBHOOK_SECRET_OVERLAP_HOURS
from storage.database import Database
from storage.keys import ApplicationKey

OVERLAP_MS: Final = WEBHOOK_SECRET_OVERLAP_HOURS * 3_600_000
_REMEMBERED_MS: Final = 5_000
_REMEMBERED: Final = 1_000


def new_webhook_secret() -> str:
    """A secret in the format of Standard Webhooks: 32 random bytes."""
    return "whsec_" + b64encode(secrets.token_bytes(32)).decode()


class FormerSecret(msgspec.Struct, frozen=True):
    """A secret that signs until a time, because the receiver may not know the next one yet."""

    secret: str
    until_ms: int


def packed_former(former: Iterable[FormerSecret]) -> str:
    """Former secrets as one text, which is sealed as a whole."""
    return "\n".join(f"{one.secret} {one.until_ms}" for one in former)


def former_secrets(text: str, *, until_ms: int) -> list[FormerSecret]:
    """Parse a text of `packed_former`. `until_ms`: expiry for a text without a time, which an older version stored."""
    found = []
    for line in text.splitlines():
        secret, _, until = line.partition(" ")
        found.append(FormerSecret(secret, int(until) if until else until_ms))
    return found


def masked(secret: str) -> str:
    """Eight stars and the last four characters (reference 11.1)."""
    return "*" * 8 + secret[-4:]


class Signers:
    """The secrets of callbacks. To open a sealed one takes longer than all else of a delivery, so they are remembered:
    the client secrets for seconds, because provisioning may change them."""

    def __init__(self, database: Database, vault: Vault, clock: Clock) -> None:
        self._database = database
        self._vault = vault
        self._clock = clock
        self._clients: dict[ApplicationKey, tuple[int, str]] = {}
        self._opened: dict[bytes, str] = {}

    async def callback(self, subscription: Subscription) -> Callback:
        record, now_ms = subscription.record, self._clock.now_ms()
        secrets = [] if record.webhook_secret is None else [self.opened(record.webhook_secret)]
        if record.old_webhook_secret is not None and (record.old_secret_until or 0) > now_ms:
            former = former_secrets(self.opened(record.old_webhook_secret), until_ms=record.old_secret_until or 0)
            secrets += [one.secret for one in former if one.until_ms > now_ms]
        return Callback(
            record.callback_url or "",
            subscription.names.application_id,
            await self._client_secret(record.application),
            tuple(secrets),
        )

    async def _client_secret(self, key: ApplicationKey) -> str:
        until, secret = self._clients.get(key, (0, ""))
        now = self._clock.steady_ms()
        if now >= until:
            application = await self._database.read(lambda tx: tx.accounts.application(key))
            secret = "" if application is None else self.opened(application.secret)
            if len(self._clients) >= _REMEMBERED:
                self._clients.clear()
            self._clients[key] = (now + _REMEMBERED_MS, secret)
        return secret

    def opened(self, sealed: bytes) -> str:
        secret = self._opened.get(sealed)
        if secret is None:
            if len(self._opened) >= _REMEMBERED:
                self._opened.clear()
            secret = self._opened[sealed] = self._vault.open(sealed)
        return secret
