"""Trunkline as an OpenID provider: ID tokens, and the keys that sign them (reference 4.11; OpenID Connect Core 1.0).

An ID token says to one application who has signed in. It is made in the transaction that exchanges the code.
"""

import base64
import hashlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import msgspec
import trio
from joserfc import jwt
from joserfc.jwk import RSAKey

from broker.clock import Clock
from broker.ids import new_id
from broker.secrets import Vault
from broker.threads import run_in_thread
from storage.database import Database
from storage.records import UserRecord
from storage.signing_keys import SigningKeyRecord
from storage.transaction import Transaction

OPENID: Final = "openid"
PROFILE: Final = "profile"
EMAIL: Final = "email"
SCOPES: Final = (OPENID, PROFILE, EMAIL)
ALGORITHM: Final = "RS256"
#: The claims that an ID token or a userinfo response may have about a person.
CLAIMS: Final = ("sub", "name", "preferred_username", "updated_at", "email", "email_verified")
ID_TOKEN_SECONDS: Final = 3600
_KEY_BITS: Final = 2048


class OpenIdRequest(msgspec.Struct, frozen=True):
    """The part of a request that is OpenID Connect. `signed_in_on`: when the person's browser session began."""

    scope: str
    nonce: str | None = None
    signed_in_on: int | None = None


class NoSigningKey(LookupError):
    """`trunkline key rotate` has removed the key since the code was issued."""


def scope_of(given: str | None) -> str:
    """The known scopes of a request, in one order; empty without `openid`: then it is plain OAuth 2."""
    wanted = (given or "").split()
    return " ".join(one for one in SCOPES if one in wanted) if OPENID in wanted else ""


def claims_about(user: UserRecord, scope: str) -> dict[str, Any]:
    """The claims about a person that the scopes allow (OpenID Connect Core 1.0, 5.4)."""
    scopes = scope.split()
    claims: dict[str, Any] = {"sub": user.id}
    if PROFILE in scopes:
        claims |= {"name": user.full_name or user.name or user.id, "updated_at": user.modified_on // 1000}
        if user.name:
            claims["preferred_username"] = user.name
    if EMAIL in scopes and user.email:
        claims |= {"email": user.email, "email_verified": user.email_verified_on is not None}
    return claims


class SigningKeys:
    """The store's own keys. Every node signs with the newest one, and reads it from the store each time."""

    def __init__(self, database: Database, vault: Vault, clock: Clock) -> None:
        self._database = database
        self._vault = vault
        self._clock = clock
        self._making = trio.Lock()

    async def ensure(self) -> None:
        """Make the first key, if there is none yet."""
        if await self._known():
            return
        async with self._making:
            if await self._known():
                return
            record = await run_in_thread(lambda: new_signing_key(self._vault, now_ms=self._clock.now_ms()))
            await self._database.write(
                lambda tx: (
                    None if tx.authorizations.signing_keys.newest() else tx.authorizations.signing_keys.add(record)
                )
            )

    async def public(self) -> Mapping[str, Any]:
        """The public keys as a JWK Set (RFC 7517, 5)."""
        await self.ensure()
        record = await self._known()
        return {"keys": [] if record is None else [_public(loaded(self._vault, record))]}

    async def _known(self) -> SigningKeyRecord | None:
        return await self._database.look_up(lambda tx: tx.authorizations.signing_keys.newest())


def new_signing_key(vault: Vault, *, now_ms: int) -> SigningKeyRecord:
    """Takes a tenth of a second of processor time."""
    key = RSAKey.generate_key(_KEY_BITS, private=True)
    return SigningKeyRecord(new_id(), vault.seal(key.as_pem(private=True).decode()), now_ms)


def loaded(vault: Vault, record: SigningKeyRecord) -> RSAKey:
    """The private key."""
    return _loaded(record.id, vault.open(record.sealed))


@lru_cache(1)  # a key never changes, and to check it takes as long as many signatures
def _loaded(id_: str, pem: str) -> RSAKey:
    return RSAKey.import_key(pem, {"kid": id_, "use": "sig", "alg": ALGORITHM})


def _public(key: RSAKey) -> dict[str, Any]:
    return dict(key.as_dict(private=False))


def id_token(
    tx: Transaction,
    vault: Vault,
    user: UserRecord,
    asked: OpenIdRequest,
    *,
    issuer: str,
    client_id: str,
    access_token: str,
    now_ms: int,
) -> str:
    """A signed ID token (OpenID Connect Core 1.0, 2 and 3.1.3.6). Raises NoSigningKey."""
    record = tx.authorizations.signing_keys.newest()
    if record is None:
        raise NoSigningKey
    key = loaded(vault, record)
    now = now_ms // 1000
    claims: dict[str, Any] = {
        "iss": issuer,
        "aud": client_id,
        "iat": now,
        "exp": now + ID_TOKEN_SECONDS,
        "at_hash": _half_hash(access_token),
        **claims_about(user, asked.scope),
    }
    if asked.nonce is not None:
        claims["nonce"] = asked.nonce
    if asked.signed_in_on is not None:
        claims["auth_time"] = asked.signed_in_on // 1000
    return jwt.encode({"alg": ALGORITHM, "kid": key.kid, "typ": "JWT"}, claims, key, algorithms=[ALGORITHM])


def _half_hash(token: str) -> str:
    digest = hashlib.sha256(token.encode()).digest()
    return base64.urlsafe_b64encode(digest[: len(digest) // 2]).rstrip(b"=").decode()
