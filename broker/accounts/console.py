"""The console's way in: access tokens for its pages, and one-time links for its operator (reference 4.10).

The pages call the public API with user tokens of the built-in console application. A token belongs to a browser session
and ends with it. Tokens are never stored: they are derived from the session and a key of this process, so all pages of
a session have the same one, and after a restart the pages ask for the next.
"""

import hmac
import secrets
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from broker.accounts.sessions import Proof, Session, Sessions, Visitor
from broker.accounts.tokens import CONSOLE_ID, Caller, TokenKind, Tokens
from broker.clock import Clock
from broker.errors import DomainError, UserNotFound
from broker.facts import FactPhase, Router, SessionsEnded
from broker.ids import new_id
from broker.secrets import Vault, token_hash
from config.limits import CONSOLE_LINK_SECONDS, CONSOLE_LINKS, CONSOLE_TOKEN_SECONDS
from storage.database import Database, Transaction
from storage.records import NEW_KEY, ApplicationRecord, UserRecord

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
        self._key = secrets.token_bytes(32)
        self._application: ApplicationRecord | None = None
        self._links: OrderedDict[bytes, tuple[UserRecord, int]] = OrderedDict()  # by hash: whose, until when
        router.subscribe(SessionsEnded, self._sessions_ended, FactPhase.STATE)

    async def token(self, session: Session) -> PageToken:
        """The access token of the session's pages. It is good for at least half of its life from now on."""
        application = self._application or await self._install()
        step_ms = CONSOLE_TOKEN_SECONDS * 500
        now_ms = self._clock.now_ms()
        step = now_ms // step_ms
        expires_on = (step + 2) * step_ms
        value = hmac.new(self._key, f"{session.id} {step}".encode(), "sha256").hexdigest()
        caller = Caller(
            kind=TokenKind.USER,
            token=token_hash(value),
            expires_on=expires_on,
            user=session.user.key,
            user_id=session.user.id,
            application=application.key,
            application_id=application.id,
            application_organization=application.organization,
        )
        self._tokens.hold(caller)
        if await self._sessions.find(session.id) is None:  # the session has ended since
            self._tokens.end_held_of(session.user.key)
        return PageToken(value, (expires_on - now_ms) // 1000)

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
        # Pages in other browsers of the same person ask for their token again.
        self._tokens.end_held_of(fact.user)

    async def new_code(self, email: str) -> str:
        """A code that signs this user in once. Raises UserNotFound: no user has proved to own the address."""
        user = await self._database.read(lambda tx: tx.accounts.user_by_email(email))
        if user is None or user.email_verified_on is None:
            raise UserNotFound
        code = new_id()
        self._links[token_hash(code)] = user, self._clock.now_ms() + CONSOLE_LINK_SECONDS * 1000
        if len(self._links) > CONSOLE_LINKS:
            self._links.popitem(last=False)
        return code

    async def enter(self, code: str, visitor: Visitor, *, instead_of: str | None = None) -> Session:
        """Sign in with the code of a link.

        Raises:
            LinkOver: the code is unknown, was used, or is too old.
            CodeWanted: the person has a second factor, whose code is asked for now.
        """
        user, until_ms = self._links.pop(token_hash(code), (None, 0))
        if user is None or until_ms <= self._clock.now_ms():
            raise ConsoleLinkOver
        return await self._sessions.begin(user, proof=Proof.LINK, instead_of=instead_of, visitor=visitor)
