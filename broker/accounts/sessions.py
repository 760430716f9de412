"""Signing in with a password and a second factor, and browser sessions (reference 4.2 and 4.9).

Only the browser has the session id; the store has its hash. The token that protects a form against cross-site request
forgery is derived from the session id, so it is not stored.

`Sessions.begin` is the one place that makes a session. It makes none for a user with a second factor, unless the code
was right: whichever way a person comes, the code is asked for.
"""

import hashlib
import hmac
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import msgspec
from cryptography.fernet import InvalidToken
from msgspec.structs import replace

from broker.accounts.hashing import Hashing, TooBusy
from broker.accounts.one_time_codes import FactorCheck, WrongCode
from broker.accounts.throttle import Throttle
from broker.clock import Clock
from broker.cluster.kinds import publish
from broker.errors import DomainError
from broker.facts import SessionsEnded
from broker.ids import is_id, new_id
from broker.secrets import Vault, token_hash
from broker.trace.audit import AuditEvent, note
from broker.trace.origin import address_key, concerning
from config.limits import (
    PASSWORD_ADDRESS_MISSES,
    PASSWORD_MISSES,
    PASSWORD_WINDOW_SECONDS,
    SECOND_FACTOR_DAY_MISSES,
    SECOND_FACTOR_MISSES,
    SECOND_FACTOR_SECONDS,
    SECOND_FACTOR_WINDOW_SECONDS,
    SESSION_SECONDS,
    SESSION_USE_SECONDS,
    SESSIONS_OF_ONE_USER,
)
from config.mail import folded_address
from storage.database import Database
from storage.keys import UserKey
from storage.records import SessionRecord, UserRecord
from storage.transaction import Transaction

_USER_AGENT_CHARACTERS: Final = 200
_DAY_SECONDS: Final = 86_400


class Proof(StrEnum):
    """How a person proved who they are."""

    PASSWORD = "password"  # noqa: S105 - a name
    CODE = "code"  # password or provider, and the second factor
    LINK = "link"  # a one-time link that the operator was shown
    PROVIDER = "provider"


@dataclass(eq=False)
class WrongPassword(DomainError):
    """The e-mail address or the password is wrong. The answer does not say which, so it reveals no accounts."""

    status = 403
    template = "The e-mail address or the password is wrong."


@dataclass(eq=False)
class AccountDisabled(WrongPassword):
    """The operator has disabled the account. Only its owner, who has proved to be that, gets this answer."""

    template = "This account is disabled. The operator of this gateway can enable it."


@dataclass(eq=False)
class CodeWanted(DomainError):
    """The password is right, and the person has a second factor. There is no session yet."""

    status = 403
    template = "Please enter the code of your second factor."
    waiting: str = field(repr=False)  # for `Sessions.finish`; only this browser may have it


@dataclass(eq=False)
class SignInAgain(DomainError):
    """The password was entered too long ago, or has changed since."""

    status = 403
    template = "This took too long. Please sign in again."


class _Waiting(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="sign-in"):
    """State between password and code. The browser keeps it, sealed."""

    user: int
    mark: bytes
    expires_on: int


class Visitor(msgspec.Struct, frozen=True):
    """Where a person comes from, as the person's list of sessions shows it."""

    address: str = ""
    user_agent: str = ""

    @property
    def shortened(self) -> str:
        """The beginning of the browser's name for itself, without control characters."""
        return "".join(one for one in self.user_agent if one.isprintable())[:_USER_AGENT_CHARACTERS]


#: A person whose browser is not known.
UNKNOWN: Final = Visitor()


@dataclass(frozen=True, slots=True)
class Session:
    """The session of a person who is signed in.

    With `must_enrol`, the operator wants the person to have a second factor, and the session is good for nothing else
    than to set it up.
    """

    id: str = field(repr=False)
    user: UserRecord
    created_on: int
    must_enrol: bool = False

    def proof(self, *about: bytes) -> str:
        """The CSRF token of a form that was shown in this session and concerns `about`."""
        return _keyed(self.id.encode(), *about)

    def proves(self, proof: str, *about: bytes) -> bool:
        return _equal(proof, self.proof(*about))


class FormKeys:
    """CSRF tokens for people without a session: the browser has a random key in a cookie, and the server signs it."""

    def __init__(self, vault: Vault) -> None:
        self._secret = vault.derived("forms")  # so every daemon on this store takes a form that another one showed

    def proof(self, browser_key: str) -> str:
        return _keyed(self._secret, browser_key.encode())

    def proves(self, proof: str, browser_key: str) -> bool:
        return is_id(browser_key) and _equal(proof, self.proof(browser_key))


@dataclass(eq=False)
class Sessions:
    _database: Database
    _clock: Clock
    _hashing: Hashing
    _vault: Vault
    _factor_check: FactorCheck

    def __post_init__(self) -> None:
        self._throttle = Throttle(self._clock, misses=PASSWORD_MISSES, window_seconds=PASSWORD_WINDOW_SECONDS)
        # Against one address that tries one password on many accounts. Higher than the other throttle, because the
        # people of a household or behind a proxy share one address.
        self._by_address = Throttle(self._clock, misses=PASSWORD_ADDRESS_MISSES, window_seconds=PASSWORD_WINDOW_SECONDS)
        # A code has six digits: even with the password, nobody may try many of them, in a day either.
        self._codes = Throttle(self._clock, misses=SECOND_FACTOR_MISSES, window_seconds=SECOND_FACTOR_WINDOW_SECONDS)
        self._codes_of_day = Throttle(self._clock, misses=SECOND_FACTOR_DAY_MISSES, window_seconds=_DAY_SECONDS)

    async def sign_in(
        self, name: str, password: str, *, address: str, instead_of: str | None = None, user_agent: str = ""
    ) -> Session:
        """A new session.

        Args:
            name: the e-mail address or the user name.
            password: of the account.
            address: the person's IP address.
            instead_of: the id of the browser's former session; it ends.
            user_agent: what the browser calls itself.

        Raises:
            WrongPassword: there is no such account, or it has another password.
            TooManyAttempts: too many wrong passwords for this account or from this address. This password was not
                looked at.
            TooBusy: too many passwords are being checked. This password was not looked at.
            CodeWanted: the password is right, and the second factor is missing.
        """
        visitor = Visitor(address, user_agent)
        name, address = name.strip(), address_key(address)
        self._by_address.check(address)
        user = await self._database.look_up(lambda tx: user_called(tx, name))
        if user is not None:
            concerning(user.id)
        self._hashing.require_room()
        # Counted before the password is checked, so that concurrent guesses are counted, too. Names without an account
        # are counted like the others: the answers must not differ.
        key = f"user {user.key}" if user is not None else f"name {_digest(folded_address(name))}"
        self._throttle.count(key)
        matches = await self._hashing.matches(user.password_hash if user is not None else None, password)
        if user is None or not matches:
            self._by_address.missed(address)
            raise WrongPassword
        self._throttle.forgive(key)
        if user.password_hash is not None and self._hashing.is_outdated(user.password_hash):
            user = await self._renewed(user, password)
        return await self.begin(user, instead_of=instead_of, visitor=visitor)

    async def _renewed(self, user: UserRecord, password: str) -> UserRecord:
        """The user with a hash at the cost of today. The person's other sessions go on: the password is the same.

        While too many passwords are being hashed, the hash stays as it is until the next sign-in.
        """
        try:
            hashed = await self._hashing.hash(password)
        except TooBusy:
            return user

        def work(tx: Transaction) -> UserRecord:
            now = tx.accounts.user(user.key)
            if now is None or now.password_hash != user.password_hash:  # the password has changed since
                return user
            tx.accounts.renew_password_hash(user.key, hashed)
            renewed = replace(now, password_hash=hashed)
            tx.sessions.renew_password(user.key, before=password_mark(now), after=password_mark(renewed))
            tx.codes.remove_resets(user.key)  # nobody needs them: the password is known
            return renewed

        return await self._database.write(work)

    async def finish(
        self, waiting: str, code: str, *, address: str, instead_of: str | None = None, user_agent: str = ""
    ) -> Session:
        """A new session for a person whose password was right: `waiting` of CodeWanted, and the code.

        Raises:
            SignInAgain: the password is asked for once more.
            WrongCode: the code is wrong, or was used before.
            TooManyAttempts: too many wrong codes for this account. This code was not looked at.
        """
        visitor = Visitor(address, user_agent)
        self._by_address.check(address_key(address))
        user = await self._waiting_user(waiting)
        concerning(user.id)
        key, now_ms = f"user {user.key}", self._clock.now_ms()
        self._codes_of_day.check(key)
        self._codes.count(key)  # before the code is checked, as with passwords
        self._codes_of_day.missed(key)
        if not await self._database.write(lambda tx: self._factor_check.proves(tx, user.key, code, now_ms)):
            self._by_address.missed(address_key(address))
            raise WrongCode
        self._codes.forgive(key)
        self._codes_of_day.forgive(key)
        return await self.begin(user, proof=Proof.CODE, instead_of=instead_of, visitor=visitor)

    async def is_waiting(self, waiting: str) -> bool:
        """The password of this sign-in was right, and the code may be entered."""
        try:
            await self._waiting_user(waiting)
        except SignInAgain:
            return False
        return True

    async def _waiting_user(self, waiting: str) -> UserRecord:
        try:
            begun = msgspec.json.decode(self._vault.open(waiting.encode()), type=_Waiting)
        except (InvalidToken, msgspec.DecodeError, UnicodeEncodeError):
            raise SignInAgain from None
        key = UserKey(begun.user)

        def work(tx: Transaction) -> UserRecord | None:
            return tx.accounts.user(key) if tx.second_factors.of(key) is not None else None

        user = await self._database.look_up(work)
        if user is None or password_mark(user) != begun.mark or begun.expires_on <= self._clock.now_ms():
            raise SignInAgain
        return user

    async def find(self, session_id: str, *, to_enrol: bool = False) -> Session | None:
        """None if there is no such session, also when the text does not have the form of an id.

        Args:
            session_id: from the browser.
            to_enrol: find also a session that is good only for setting up the second factor.
        """
        if not is_id(session_id):
            return None
        hash_, now_ms = token_hash(session_id), self._clock.now_ms()

        def work(tx: Transaction) -> tuple[SessionRecord, Session] | None:
            found = tx.sessions.find(hash_, now_ms=now_ms)
            user = tx.accounts.user(found.user) if found is not None else None
            if found is None or user is None or password_mark(user) != found.password:
                return None
            return found, Session(session_id, user, found.created_on, self._must_enrol(tx, user.key, found.proof))

        record_and_session = await self._database.look_up(work)
        if record_and_session is None or (record_and_session[1].must_enrol and not to_enrol):
            return None
        record, session = record_and_session
        if now_ms - record.used_on >= SESSION_USE_SECONDS * 1000:
            await self._database.write(lambda tx: tx.sessions.touch(hash_, now_ms=now_ms))
        return session

    async def end(self, session_id: str) -> None:
        """End a session, if there is one with this id."""
        hash_, now_ms = token_hash(session_id), self._clock.now_ms()

        def work(tx: Transaction) -> None:
            found = tx.sessions.find(hash_, now_ms=now_ms)
            user = None if found is None else tx.accounts.user(found.user)
            if user is not None:
                note(tx, AuditEvent.SIGN_OUT, f"account {user.id}", now_ms=now_ms, actor=f"user {user.id}")
            tx.sessions.remove(hash_)
            if found is not None:
                publish(tx, SessionsEnded(found.user))

        await self._database.write(work)

    async def begin(
        self,
        user: UserRecord,
        *,
        proof: Proof = Proof.PASSWORD,
        instead_of: str | None = None,
        visitor: Visitor = UNKNOWN,
    ) -> Session:
        """A new session for a person who has given this proof.

        Raises:
            CodeWanted: the second factor is missing.
            WrongPassword: the account was deleted.
            AccountDisabled
        """
        id_, now_ms = new_id(), self._clock.now_ms()
        mark = password_mark(user)

        def work(tx: Transaction) -> Session | None:
            known = tx.accounts.user(user.key)
            if known is None:  # the account was deleted while the person signed in
                raise WrongPassword
            if known.disabled_on is not None:
                raise AccountDisabled
            if proof is not Proof.CODE and tx.second_factors.of(user.key) is not None:
                return None
            tx.sessions.purge(now_ms=now_ms)
            if instead_of is not None:
                former = tx.sessions.find(token_hash(instead_of), now_ms=now_ms)
                if former is not None:
                    publish(tx, SessionsEnded(former.user))
                tx.sessions.remove(token_hash(instead_of))
            for oldest in tx.sessions.of(user.key, now_ms=now_ms)[SESSIONS_OF_ONE_USER - 1 :]:
                tx.sessions.remove(oldest.hash)
                publish(tx, SessionsEnded(user.key))
            expires_on = now_ms + SESSION_SECONDS * 1000
            where = (visitor.address, visitor.shortened)
            tx.sessions.add(SessionRecord(token_hash(id_), user.key, mark, proof, *where, now_ms, now_ms, expires_on))
            note(tx, AuditEvent.SIGN_IN, f"account {user.id}", now_ms=now_ms, actor=f"user {user.id}")
            return Session(id_, user, now_ms, self._must_enrol(tx, user.key, proof))

        session = await self._database.write(work)
        if session is None:
            waiting = _Waiting(user.key, mark, now_ms + SECOND_FACTOR_SECONDS * 1000)
            raise CodeWanted(self._vault.seal(msgspec.json.encode(waiting).decode()).decode())
        return session

    def _must_enrol(self, tx: Transaction, user: UserKey, proof: str) -> bool:
        """The operator wants a second factor, and there is none. Setting one up ends sessions that lack its code."""
        if proof == Proof.PROVIDER or not self._factor_check.is_wanted(tx, user):
            return False
        return tx.second_factors.of(user) is None


def user_called(tx: Transaction, name: str) -> UserRecord | None:
    """The user with this e-mail address or user name."""
    return tx.accounts.user_by_email(name) or tx.accounts.user_named(name)


def password_mark(user: UserRecord | None) -> bytes:
    """A hash of the password hash, stored with sessions and reset codes: another password makes them invalid."""
    return token_hash((user.password_hash if user is not None else None) or "")


def _digest(text: str) -> str:
    """A key of bounded length for the throttle."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def _keyed(key: bytes, *about: bytes) -> str:
    """Each part is hashed by itself, so that (`a`, `bc`) and (`ab`, `c`) have different results."""
    parts = b"".join(hashlib.sha256(part).digest() for part in about)
    return hmac.new(key, parts, hashlib.sha256).hexdigest()


def _equal(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode(errors="surrogatepass"), expected.encode())
