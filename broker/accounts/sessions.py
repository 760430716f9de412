"""Signing in with a password, and browser sessions (reference 4.2).

Only the browser has the session id; the store has its hash. The token that protects a form against cross-site request
forgery is derived from the session id, so it is not stored.
"""

import hashlib
import hmac
import secrets
from dataclasses import dataclass, field

from broker.accounts.hashing import Hashing
from broker.accounts.throttle import Throttle, address_key
from broker.clock import Clock
from broker.errors import DomainError
from broker.ids import is_id, new_id
from broker.secrets import token_hash
from config.limits import PASSWORD_ADDRESS_MISSES, PASSWORD_MISSES, PASSWORD_WINDOW_SECONDS, SESSION_SECONDS
from storage.database import Database, Transaction
from storage.records import UserRecord


@dataclass(eq=False)
class WrongPassword(DomainError):
    """The e-mail address or the password is wrong. The answer does not say which, so it reveals no accounts."""

    status = 403
    template = "The e-mail address or the password is wrong."


@dataclass(frozen=True, slots=True)
class Session:
    """The session of a person who is signed in."""

    id: str = field(repr=False)
    user: UserRecord

    def proof(self, *about: bytes) -> str:
        """The CSRF token of a form that was shown in this session and concerns `about`."""
        return _keyed(self.id.encode(), *about)

    def proves(self, proof: str, *about: bytes) -> bool:
        return _equal(proof, self.proof(*about))


class FormKeys:
    """CSRF tokens for people without a session: the browser has a random key in a cookie, and the server signs it."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)  # not stored: after a restart the form is shown once more

    def proof(self, browser_key: str) -> str:
        return _keyed(self._secret, browser_key.encode())

    def proves(self, proof: str, browser_key: str) -> bool:
        return is_id(browser_key) and _equal(proof, self.proof(browser_key))


class Sessions:
    def __init__(self, database: Database, clock: Clock, hashing: Hashing) -> None:
        self._database = database
        self._clock = clock
        self._hashing = hashing
        self._throttle = Throttle(clock, misses=PASSWORD_MISSES, window_seconds=PASSWORD_WINDOW_SECONDS)
        # Against one address that tries one password on many accounts. Higher than the other throttle, because the
        # people of a household or behind a proxy share one address.
        self._by_address = Throttle(clock, misses=PASSWORD_ADDRESS_MISSES, window_seconds=PASSWORD_WINDOW_SECONDS)

    async def sign_in(self, name: str, password: str, *, address: str, instead_of: str | None = None) -> Session:
        """A new session.

        Args:
            name: the e-mail address or the user name.
            address: the person's IP address.
            instead_of: the id of the browser's former session; it ends.

        Raises:
            WrongPassword: there is no such account, or it has another password.
            TooManyAttempts: too many wrong passwords for this account or from this address. This password was not
                looked at.
            TooBusy: too many passwords are being checked. This password was not looked at.
        """
        name, address = name.strip(), address_key(address)
        self._by_address.check(address)
        user = await self._database.read(lambda tx: user_called(tx, name))
        self._hashing.require_room()
        # Counted before the password is checked, so that concurrent guesses are counted, too. Names without an account
        # are counted like the others: the answers must not differ.
        key = f"user {user.key}" if user is not None else f"name {_digest(name.casefold())}"
        self._throttle.count(key)
        matches = await self._hashing.matches(user.password_hash if user is not None else None, password)
        if user is None or not matches:
            self._by_address.missed(address)
            raise WrongPassword
        self._throttle.forgive(key)
        return await self.begin(user, instead_of=instead_of)

    async def find(self, session_id: str) -> Session | None:
        """None if there is no such session, also when the text does not have the form of an id."""
        if not is_id(session_id):
            return None
        hash_, now_ms = token_hash(session_id), self._clock.now_ms()

        def work(tx: Transaction) -> UserRecord | None:
            found = tx.sessions.user_of(hash_, now_ms=now_ms)
            if found is None:
                return None
            user = tx.accounts.user(found[0])
            return user if user is not None and password_mark(user) == found[1] else None

        user = await self._database.read(work)
        return Session(session_id, user) if user is not None else None

    async def end(self, session_id: str) -> None:
        """End a session, if there is one with this id."""
        await self._database.write(lambda tx: tx.sessions.remove(token_hash(session_id)))

    async def begin(self, user: UserRecord, *, instead_of: str | None = None) -> Session:
        """A new session for a person whose identity is proven: `sign_in` without a password."""
        session, now_ms = Session(new_id(), user), self._clock.now_ms()

        def work(tx: Transaction) -> None:
            tx.sessions.purge(now_ms=now_ms)
            if instead_of is not None:
                tx.sessions.remove(token_hash(instead_of))
            expires_on = now_ms + SESSION_SECONDS * 1000
            hash_, mark = token_hash(session.id), password_mark(user)
            tx.sessions.add(hash_, user.key, password=mark, now_ms=now_ms, expires_on=expires_on)

        await self._database.write(work)
        return session


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
