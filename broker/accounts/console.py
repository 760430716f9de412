"""The console's way in: access tokens for its pages, and one-time links for its operator (reference 4.10).

The pages call the public API with user tokens of the built-in console application. A token belongs to a browser session
and ends with it. It is derived from the session and a key of the vault, so all pages of a session have the same one,
and the store has its hash, so every daemon on the store knows it.
"""

import hmac
from dataclasses import dataclass, field
from typing import Final

from broker.accounts.sessions import Proof, Session, Sessions, Visitor
from broker.accounts.tokens import CONSOLE_ID, Tokens
from broker.clock import Clock
from broker.errors import DomainError, Unauthorized, UserNotFound
from broker.facts import FactPhase, Router, SessionsEnded
from broker.ids import new_id
from broker.secrets import Vault, token_hash
from config.limits import CONSOLE_LINK_SECONDS, CONSOLE_LINKS, CONSOLE_TOKEN_SECONDS
from storage.database import Database
from storage.records import NEW_KEY, ApplicationRecord, TokenRecord, UserRecord
from storage.transaction import Transaction

CONSOLE_NAME: Final = "Trunkline console"


@dataclass(eq=False)
class ConsoleLinkOver(DomainError):
    """The one-time link was used before, or is too old."""

    status = 403
    template = "This link is no longer valid: it is good once, and for a short time."


@dataclass(frozen=True, slots=True)
class PageToken:
    value: str = field(repr=False)
    expires_in: int  # seconds


class Console:
    def __init__(
        self, database: Database, clock: Clock, router: Router, vault: Vault, tokens: Tokens, sessions: Sessions
    ) -> None:
        self._database = database
        self._clock = clock
        self._vault = vault
        self._tokens = tokens
        self._sessions = sessions
        self._key = vault.derived("console tokens")
        self._application: ApplicationRecord | None = None
        router.subscribe(SessionsEnded, self._sessions_ended, FactPhase.STATE)

    async def token(self, session: Session) -> PageToken:
        """The access token of the session's pages. It is good for at least half of its life from now on, and not longer
        than the session. Raises Unauthorized: the session has ended since it was found."""
        application = self._application or await self._install()
        step_ms = CONSOLE_TOKEN_SECONDS * 500
        now_ms = self._clock.now_ms()
        step = now_ms // step_ms
        expires_on = (step + 2) * step_ms
        value = hmac.new(self._key, f"{session.id} {step}".encode(), "sha256").hexdigest()
        hash_, of = token_hash(value), token_hash(session.id)

        def work(tx: Transaction) -> int:
            if (known := tx.accounts.token(hash_)) is not None:
                return known.expires_on
            if (found := tx.sessions.find(of, now_ms=now_ms)) is None:
                raise Unauthorized
            until = min(expires_on, found.expires_on)
            user = session.user.key
            tx.accounts.put_token(TokenRecord(hash_, application.key, user, now_ms, until, session=of))
            return until

        known = await self._database.look_up(lambda tx: tx.accounts.token(hash_))
        until_ms = await self._database.write(work) if known is None else known.expires_on
        return PageToken(value, (until_ms - now_ms) // 1000)

    async def _install(self) -> ApplicationRecord:
        """The application that the tokens are of. The store has it once somebody has opened the console."""
        secret = self._vault.seal(new_id())  # nobody gets it: the application has no method to use it with

        def work(tx: Transaction) -> ApplicationRecord:
            accounts = tx.accounts
            if (known := accounts.application_by_id(CONSOLE_ID)) is not None:
                return known
            owner = accounts.organization_named(CONSOLE_NAME) or accounts.add_organization(new_id(), CONSOLE_NAME, -1)
            new = ApplicationRecord(NEW_KEY, CONSOLE_ID, owner.key, CONSOLE_NAME, secret, (), (), ())
            return accounts.put_application(new)

        self._application = await self._database.write(work)
        return self._application

    def _sessions_ended(self, fact: SessionsEnded) -> None:
        self._tokens.forget_pages_of(fact.user)

    async def new_code(self, email: str) -> str:
        """A code that signs this user in once. Raises UserNotFound: no user has proved to own the address."""
        code, now_ms = new_id(), self._clock.now_ms()
        until_ms = now_ms + CONSOLE_LINK_SECONDS * 1000

        def work(tx: Transaction) -> None:
            user = tx.accounts.user_by_email(email)
            if user is None or user.email_verified_on is None:
                raise UserNotFound
            hash_ = token_hash(code)
            tx.codes.add_console_link(hash_, user.key, expires_on=until_ms, now_ms=now_ms, at_most=CONSOLE_LINKS)

        await self._database.write(work)
        return code

    async def enter(self, code: str, visitor: Visitor, *, instead_of: str | None = None) -> Session:
        """Sign in with the code of a link.

        Raises:
            LinkOver: the code is unknown, was used, or is too old.
            CodeWanted: the person has a second factor, whose code is asked for now.
        """
        now_ms = self._clock.now_ms()

        def work(tx: Transaction) -> UserRecord | None:
            user = tx.codes.take_console_link(token_hash(code), now_ms=now_ms)
            return None if user is None else tx.accounts.user(user)

        if (user := await self._database.write(work)) is None:
            raise ConsoleLinkOver
        return await self._sessions.begin(user, proof=Proof.LINK, instead_of=instead_of, visitor=visitor)
