"""Bearer tokens of users, applications and devices, and the callers that they authenticate (reference 4.6)."""

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from enum import Enum
from typing import TypeVar

import msgspec
import structlog

from broker.accounts.issuance import Issuance, Lifetimes
from broker.accounts.wrong_tokens import WrongTokens
from broker.changes import Changes, ReadsTogether
from broker.clock import Clock
from broker.cluster.kinds import TOKEN_SHORTENED
from broker.cluster.news import News
from broker.errors import PermissionDenied, Unauthorized
from broker.facts import DeviceChanged, FactPhase, Router, TokenRevoked
from broker.loops import Loop
from broker.secrets import token_hash
from broker.trace.origin import set_actor
from config.limits import EXPIRY_SWEEP_SECONDS
from storage.ballast import making_room
from storage.database import Database
from storage.keys import ApplicationKey, DeviceKey, OrganizationKey, UserKey
from storage.records import DeviceRecord, RefreshTokenRecord, TokenRecord
from storage.transaction import Transaction

T = TypeVar("T")
#: The id of the console application (reference 4.10).
CONSOLE_ID = "c0" * 16
_CACHED_TOKENS = 20_000
_SWEEPS_PER_PURGE = 300
_PURGED_AT_ONCE = 1_000

_Revocable = TokenRecord | RefreshTokenRecord
#: The caller, and the record of its device.
_Resolved = tuple["Caller", DeviceRecord | None]

_log = structlog.get_logger(__name__)


class TokenKind(Enum):
    USER = "user"
    APPLICATION = "application"
    DEVICE = "device"


class Caller(msgspec.Struct, frozen=True):
    """The holder of a valid token. Keys are the integers of the store; a key that the token does not have is None."""

    kind: TokenKind
    token: bytes  # SHA-256 of the token
    expires_on: int | None
    user: UserKey | None = None
    user_id: str | None = None
    application: ApplicationKey | None = None
    application_id: str | None = None
    application_organization: OrganizationKey | None = None  # whose rights the application has
    trial_organization: OrganizationKey | None = None  # instead, when it is the application of a trial (reference 14.2)
    device: DeviceKey | None = None
    device_id: str | None = None
    device_owner: str | None = None  # the owner's id

    @property
    def is_console(self) -> bool:
        """A user's token of the built-in console, which reaches what its user may reach."""
        return self.kind is TokenKind.USER and self.application_id == CONSOLE_ID

    @property
    def actor(self) -> str:
        """The holder for logs: a word and the id."""
        match self.kind:
            case TokenKind.USER:
                return f"user {self.user_id}"
            case TokenKind.APPLICATION:
                return f"application {self.application_id}"
            case TokenKind.DEVICE:
                return f"device {self.device_id}"

    def act(self) -> None:
        """From here on the current task works for this caller."""
        set_actor(self.actor, self.application_id or "" if self.kind is TokenKind.USER else "", self.payer, self)

    @property
    def payer(self) -> str:
        """The party that the caller's use is charged to, if it is not the caller. A user can make a hundred trials, so
        the applications of an organization's trials act for one payer."""
        if self.device_owner is not None:
            return f"user {self.device_owner}"
        if self.trial_organization is not None and self.kind is TokenKind.APPLICATION:
            return trials_of(self.trial_organization)
        return ""


def user_through(
    user: UserKey | None,
    user_id: str | None,
    application: ApplicationKey,
    application_id: str,
    organization: OrganizationKey,
) -> Caller:
    """A user through an application, without a token: the daemon acts for the user."""
    return Caller(TokenKind.USER, b"", None, user, user_id, application, application_id, organization)


def trials_of(organization: OrganizationKey) -> str:
    """The account on which the applications of trials work together (`broker/trace/origin.py: Origin`)."""
    return f"trials of organization {organization}"


class TokenInformation(msgspec.Struct, frozen=True):
    """The answer of `tokenInfo` (reference 4.5). `expires_in` is in seconds; -1 means never."""

    device_id: str | None
    user_id: str | None
    client_id: str | None
    expires_in: int


class Tokens:
    """Resolves tokens to callers, and ends tokens. A resolved caller is cached until its token or device changes."""

    def __init__(
        self, database: Database, clock: Clock, router: Router, news: News, lifetimes: Lifetimes, wrong: WrongTokens
    ) -> None:
        self._database = database
        self._clock = clock
        self._router = router
        self._lifetimes = lifetimes
        self._swept_until = clock.now_ms()
        self._sweeps = 0  # since the last purge
        self._known: OrderedDict[bytes, Caller] = OrderedDict()
        #: Tokens of the console's pages that were used here: whose, and until when. They end with their session.
        self._of_pages: dict[bytes, tuple[UserKey, int]] = {}
        self._wrong = wrong
        self._changes = Changes()
        self._reads: ReadsTogether[bytes, _Resolved] = ReadsTogether(self._read, self._changes)
        router.subscribe(TokenRevoked, lambda fact: self._forget_hash(fact.hash), FactPhase.STATE)
        router.subscribe(DeviceChanged, self._forget_device, FactPhase.STATE)
        news.listen(TOKEN_SHORTENED, self._shortened)
        #: Announces expired tokens, so that their connections end, and removes old rows every ten minutes.
        self.end_expired_forever = Loop(self._sweep, every=EXPIRY_SWEEP_SECONDS, failure="token_sweep_failed").run

    async def caller(self, token: str) -> Caller:
        """The caller behind a bearer token.

        Raises:
            Unauthorized: it is unknown, expired or revoked.
            TooManyWrongTokens: it is not in memory, and too many unknown ones came from this address.
        """
        return (await self.caller_and_record(token))[0]

    async def caller_and_record(self, token: str) -> tuple[Caller, DeviceRecord | None]:
        """The same, and the record of a device whose token was read just now; None when it was in memory."""
        hashed = token_hash(token)
        known = self._known.get(hashed)
        caller, record = (known, None) if known is not None else await self._load(hashed)
        if caller.expires_on is not None and caller.expires_on <= self._clock.now_ms():
            raise Unauthorized
        return caller, record

    def caller_nowait(self, token: str) -> Caller | None:
        """The caller, if its token is cached and valid."""
        caller = self._known.get(token_hash(token))
        if caller is None or (caller.expires_on is not None and caller.expires_on <= self._clock.now_ms()):
            return None
        return caller

    def is_current(self, caller: Caller) -> bool:
        """Whether a caller that was resolved before is still cached and valid, so that its token need not be hashed."""
        return self._known.get(caller.token) is caller and (
            caller.expires_on is None or caller.expires_on > self._clock.now_ms()
        )

    @property
    def unused_days(self) -> int:
        """How long an application that is not used can have tokens refreshed: a token's life and the time after it."""
        return -(-(self._lifetimes.user_token_seconds * 1000 + self._lifetimes.refresh_window_ms) // 86_400_000)

    def renew_limit(self, wrong_tokens: int) -> None:
        """Replace the limit of unknown tokens from one address within a minute."""
        self._wrong.renew(wrong_tokens)

    def forget_pages_of(self, user: UserKey) -> None:
        """A session of the user has ended, and its tokens with it. Pages in the user's other browsers connect again."""
        self._changes.note()
        self._end_pages([hashed for hashed, (whose, _until) in self._of_pages.items() if whose == user])

    def _end_pages(self, hashes: Iterable[bytes]) -> None:
        for hashed in hashes:
            del self._of_pages[hashed]
            self._router.publish(TokenRevoked(hashed))

    async def _load(self, hashed: bytes) -> _Resolved:
        self._wrong.check(hashed)
        found = await self._reads.get(hashed)
        if found is None:
            self._wrong.note(hashed)
            raise Unauthorized
        self._known[hashed] = caller = found[0]
        if caller.is_console and caller.user is not None:
            self._of_pages[hashed] = caller.user, caller.expires_on or 0
        if len(self._known) > _CACHED_TOKENS:
            self._known.popitem(last=False)
        return found

    async def _read(self, hashes: Collection[bytes]) -> Mapping[bytes, _Resolved]:
        wanted = tuple(hashes)
        return await self._database.look_up(lambda tx: _resolve(tx, wanted))

    async def information(self, token: str) -> TokenInformation:
        """Raises Unauthorized."""
        caller = await self.caller(token)
        if caller.expires_on is None:
            client_id = await self._database.look_up(lambda tx: _application_of_device(tx, caller))
            return TokenInformation(caller.device_id, None, client_id, -1)
        seconds = (caller.expires_on - self._clock.now_ms()) // 1000
        return TokenInformation(None, caller.user_id, caller.application_id, max(0, seconds))

    async def revoke(self, token: str, *, on_behalf_of: Caller | None = None) -> None:
        """End a user's or an application's token, or a refresh token, and with it everything refreshed from it.

        Args:
            token: in the clear.
            on_behalf_of: the caller, if it is not the holder of the token; the token must be of its application.

        Raises:
            Unauthorized: the token is unknown, expired or revoked.
            PermissionDenied: the token is a device token or a token of another application.
        """
        hashed = token_hash(token)
        self._wrong.check(hashed)

        def work(issuance: Issuance) -> None:
            tx = issuance.tx
            if tx.devices.token_by_hash(hashed) is not None:
                raise PermissionDenied("a user or application token")
            found: _Revocable | None = tx.accounts.token(hashed)
            until = found.expires_on if isinstance(found, TokenRecord) else 0
            if found is None and (found := tx.authorizations.refresh_token(hashed)) is not None:
                until = found.usable_until if found.used_on is None else 0
            if found is None or until <= issuance.now_ms or (isinstance(found, TokenRecord) and found.session):
                raise Unauthorized  # a token of a page ends with its session
            if on_behalf_of is not None and found.application != on_behalf_of.application:
                raise PermissionDenied("a token of this application")
            if isinstance(found, TokenRecord):
                issuance.end_token(found)
            else:
                issuance.end_families((found.family,))

        await self.change(work)

    async def change(self, work: Callable[[Issuance], T]) -> T:
        """Issue and end tokens in one transaction."""
        now_ms = self._clock.now_ms()
        return await self._database.write(lambda tx: work(self.issuance(tx, now_ms)))

    def issuance(self, tx: Transaction, now_ms: int) -> Issuance:
        """Issue tokens in another component's transaction."""
        return Issuance(tx, self._lifetimes, now_ms)

    async def _sweep(self) -> None:
        self._sweeps += 1
        await self.end_expired()
        if self._sweeps >= _SWEEPS_PER_PURGE:
            self._sweeps = 0  # a purge that fails is not repeated before the next one is due
            with making_room():
                await self.purge()

    async def end_expired(self) -> None:
        """Publish TokenRevoked for the tokens that expired since the last call."""
        after, now_ms = self._swept_until, self._clock.now_ms()
        if now_ms > after:
            expired = await self._database.read(lambda tx: tx.accounts.expired_tokens(after_ms=after, until_ms=now_ms))
            for hashed in expired:
                self._of_pages.pop(hashed, None)
                self._router.publish(TokenRevoked(hashed))
            # Of those whose session was over at the same time, there may be no row any more.
            self._end_pages([one for one, (_user, until) in self._of_pages.items() if until <= now_ms])
        self._swept_until = now_ms

    async def purge(self) -> None:
        """Remove the rows of tokens and codes that can no longer be used."""
        if not self._clock.may_delete():
            return
        now_ms, window_ms = self._clock.now_ms(), self._lifetimes.refresh_window_ms
        while await self._database.write(
            lambda tx: tx.authorizations.purge(now_ms=now_ms, refresh_window_ms=window_ms, limit=_PURGED_AT_ONCE)
        ):
            pass  # in small steps, so that other writes get their turn

    def forget_all(self) -> None:
        """Empty the cache, because many tokens may have changed at once."""
        self._changes.note()
        self._known.clear()
        self._wrong.clear()

    def _forget_hash(self, hashed: bytes) -> None:
        self._changes.note()
        self._known.pop(hashed, None)

    def _shortened(self, hashed: bytes, _content: None) -> None:
        self._forget_hash(hashed)

    def _forget_device(self, fact: DeviceChanged) -> None:
        self._changes.note()
        for hashed in [hashed for hashed, caller in self._known.items() if caller.device == fact.device]:
            del self._known[hashed]


def _application_of_device(tx: Transaction, caller: Caller) -> str | None:
    """The id of the application that created the device token, if an application did."""
    token = tx.devices.token_by_hash(caller.token)
    application = tx.accounts.application(token.application) if token and token.application is not None else None
    return application.id if application is not None else None


def _resolve(tx: Transaction, hashes: Collection[bytes]) -> dict[bytes, _Resolved]:
    """The tokens among these that exist."""
    found: dict[bytes, _Resolved] = {}
    for hashed in hashes:
        if (device := tx.devices.by_token(hashed)) is not None:
            kind = TokenKind.DEVICE
            caller = Caller(
                kind=kind,
                token=hashed,
                expires_on=None,
                device=device.key,
                device_id=device.id,
                device_owner=device.owner_id,
            )
            found[hashed] = caller, device
        elif (other := _resolve_other(tx, hashed)) is not None:
            found[hashed] = other, None
    return found


def _resolve_other(tx: Transaction, hashed: bytes) -> Caller | None:
    """The caller of a token that is not a device's."""
    token = tx.accounts.token(hashed)
    application = tx.accounts.application(token.application) if token is not None else None
    if token is None or application is None:
        return None
    # A token of a user who is gone must not become the application's own: that one reaches what every user granted.
    is_of_user = token.user is not None or token.family is not None
    user = tx.accounts.user(token.user) if token.user is not None else None
    if is_of_user and user is None:
        return None
    is_of_trial = tx.trials.of_application(application.key) is not None
    return Caller(
        kind=TokenKind.USER if is_of_user else TokenKind.APPLICATION,
        token=hashed,
        expires_on=token.expires_on,
        user=user.key if user else None,
        user_id=user.id if user else None,
        application=application.key,
        application_id=application.id,
        application_organization=None if is_of_trial else application.organization,
        trial_organization=application.organization if is_of_trial else None,
    )
