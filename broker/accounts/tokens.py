"""Who is calling: bearer tokens of users, applications and devices (specification, Token types)."""

from collections import OrderedDict
from dataclasses import dataclass
from enum import Enum

from broker.clock import Clock
from broker.errors import Unauthorized
from broker.facts import DeviceChanged, Router, TokenRevoked
from broker.secrets import token_hash
from storage.database import Database, Transaction

_CACHED_TOKENS = 20_000


class TokenKind(Enum):
    USER = "user"
    APPLICATION = "application"
    DEVICE = "device"


@dataclass(frozen=True, slots=True)
class Caller:
    """The holder of a valid token. Keys are the short integers of the store; absent ones are None."""

    kind: TokenKind
    token: bytes  # SHA-256 of the token
    expires_on: int | None
    user: int | None = None
    user_id: str | None = None
    application: int | None = None
    application_id: str | None = None
    application_organization: int | None = None
    device: int | None = None
    device_id: str | None = None


class Tokens:
    """Resolves tokens to callers; what was resolved is remembered until it changes."""

    def __init__(self, database: Database, clock: Clock, router: Router) -> None:
        self._database = database
        self._clock = clock
        self._known: OrderedDict[bytes, Caller] = OrderedDict()
        self._changes = 0
        router.subscribe(TokenRevoked, self._forget)
        router.subscribe(DeviceChanged, self._forget_device)

    async def caller(self, token: str) -> Caller:
        """The caller behind a bearer token. Raises Unauthorized when it is unknown, expired or revoked."""
        hashed = token_hash(token)
        caller = self._known.get(hashed) or await self._load(hashed)
        if caller.expires_on is not None and caller.expires_on <= self._clock.now_ms():
            raise Unauthorized
        return caller

    async def _load(self, hashed: bytes) -> Caller:
        while True:
            changes = self._changes
            caller = await self._database.read(lambda tx: _resolve(tx, hashed))
            if changes == self._changes:  # otherwise it may have been revoked while we read
                break
        if caller is None:
            raise Unauthorized
        self._known[hashed] = caller
        if len(self._known) > _CACHED_TOKENS:
            self._known.popitem(last=False)
        return caller

    def forget_all(self) -> None:
        """Ask the store again for every token: many may have changed at once."""
        self._changes += 1
        self._known.clear()

    def _forget(self, fact: TokenRevoked) -> None:
        self._changes += 1
        self._known.pop(fact.hash, None)

    def _forget_device(self, fact: DeviceChanged) -> None:
        self._changes += 1
        for hashed in [hashed for hashed, caller in self._known.items() if caller.device == fact.device]:
            del self._known[hashed]


def _resolve(tx: Transaction, hashed: bytes) -> Caller | None:
    if (device_token := tx.devices.token_by_hash(hashed)) is not None:
        device = tx.devices.device(device_token.device)
        if device is None:
            return None
        return Caller(kind=TokenKind.DEVICE, token=hashed, expires_on=None, device=device.key, device_id=device.id)
    token = tx.accounts.token(hashed)
    application = tx.accounts.application(token.application) if token is not None else None
    if token is None or application is None:
        return None
    user = tx.accounts.user(token.user) if token.user is not None else None
    return Caller(
        kind=TokenKind.APPLICATION if user is None else TokenKind.USER,
        token=hashed,
        expires_on=token.expires_on,
        user=user.key if user else None,
        user_id=user.id if user else None,
        application=application.key,
        application_id=application.id,
        application_organization=application.organization,
    )
