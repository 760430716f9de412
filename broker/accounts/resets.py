"""Password reset by mail (reference 4.2).

A request does not reveal whether an account exists: the answer is the same, and so is the work. The mail contains a
one-time code; the store has the code's hash. Setting a new password ends all browser sessions, all tokens that
sign-ins led to, and all grants: if another person knew the old password, what that person authorized must end, and the
daemon cannot tell it from the user's own. Device tokens stay.

Where nobody had proved before to own the address, the new password is a claim (claims.py).
"""

from dataclasses import InitVar, dataclass

import msgspec
import structlog

from broker.accounts.claims import Claims
from broker.accounts.hashing import Hashing
from broker.accounts.issuance import Issuance
from broker.accounts.sessions import password_mark, user_called
from broker.accounts.sign_up import check_password
from broker.accounts.throttle import Throttle
from broker.accounts.tokens import Tokens
from broker.accounts.users import LOCAL, user_named
from broker.clock import Clock
from broker.errors import Conflict, LinkOver, UserNotFound, ValidationFailed
from broker.ids import is_id, new_id
from broker.mail import Letter, Mail, Mails, NoPasswordHere, PasswordReset
from broker.secrets import token_hash
from broker.trace.audit import AuditEvent, note
from broker.trace.origin import address_key
from config.limits import PASSWORD_RESET_SECONDS, PASSWORD_RESET_WINDOW_SECONDS, PASSWORD_RESETS
from config.settings import Accounts
from storage.database import Database
from storage.records import PasswordResetRecord, UserRecord
from storage.transaction import Transaction

_NOBODY = "nobody@localhost"
_log = structlog.get_logger(__name__)


class NewPassword(msgspec.Struct, frozen=True):
    """The user who has a new password. `is_claim`: it is a new account, and the former one was closed."""

    user: UserRecord
    is_claim: bool


@dataclass(eq=False)
class PasswordResets:
    _database: Database
    _clock: Clock
    _tokens: Tokens
    _hashing: Hashing
    _mails: Mails
    _claims: Claims
    settings: InitVar[Accounts]

    def __post_init__(self, settings: Accounts) -> None:
        self._providers = frozenset(provider.name for provider in settings.providers)
        self._throttle = Throttle(self._clock, misses=PASSWORD_RESETS, window_seconds=PASSWORD_RESET_WINDOW_SECONDS)

    async def ask(self, name: str, *, address: str) -> None:
        """Send a mail to the account with this e-mail address or user name, if there is one and its rate allows a mail.

        Raises:
            TooManyAttempts: too many resets were asked for from this IP address.
        """
        name, address = name.strip(), address_key(address)
        self._throttle.count(address)
        user = await self._database.look_up(lambda tx: user_called(tx, name))
        code, now_ms = new_id(), self._clock.now_ms()
        expires_on = now_ms + PASSWORD_RESET_SECONDS * 1000
        letter = self._letter(user, code, expires_on, cause=address)

        def work(tx: Transaction) -> None:
            tx.codes.purge_resets(now_ms=now_ms)
            is_sent = user is not None and letter is not None and self._mails.add(tx, letter)
            receiver = user.key if user is not None and is_sent and not self._uses_provider(user) else None
            # Without an account a row is written, too: the time of an answer must not reveal who has an account.
            tx.codes.add_reset(PasswordResetRecord(token_hash(code), receiver, password_mark(user), expires_on))

        await self._database.write(work)

    def _letter(self, user: UserRecord | None, code: str, expires_on: int, *, cause: str) -> Letter | None:
        """Compose a letter also without an account, for the same work; that letter is not sent."""
        mail: Mail = PasswordReset(code=code, expires_on=expires_on)
        if user is not None and self._uses_provider(user):
            mail = NoPasswordHere(provider=user.account_type)
        try:
            return self._mails.compose(user.email if user is not None else _NOBODY, mail, cause=cause)
        except ValidationFailed:
            _log.warning("reset_mail_has_no_address", user=user.id if user is not None else None)
            return None

    async def open_for(self, name: str) -> PasswordReset:
        """A code with which the user may set a new password, for the operator to hand over; no mail is sent.

        Args:
            name: e-mail address, id or user name.

        Raises:
            UserNotFound
            Conflict: the user signs in with an identity provider.
        """
        code, now_ms = new_id(), self._clock.now_ms()
        expires_on = now_ms + PASSWORD_RESET_SECONDS * 1000

        def work(tx: Transaction) -> None:
            user = user_named(tx, name)
            if user is None:
                raise UserNotFound
            if self._uses_provider(user):
                raise Conflict(f"{user.email} signs in with {user.account_type}, and has no password here")
            tx.codes.purge_resets(now_ms=now_ms)
            tx.codes.add_reset(PasswordResetRecord(token_hash(code), user.key, password_mark(user), expires_on))

        await self._database.write(work)
        return PasswordReset(code=code, expires_on=expires_on)

    async def find(self, code: str) -> UserRecord:
        """The user whose password a code may set. Raises LinkOver."""
        now_ms = self._clock.now_ms()
        return await self._database.look_up(lambda tx: self._user_of(tx, code, now_ms))

    async def set_password(self, code: str, password: str) -> NewPassword:
        """Set a new password, and end the user's sessions, tokens, grants and all reset codes.

        Raises:
            LinkOver: the code is unknown, was used or has expired.
            ValidationFailed: the password is too short, too long or too common.
            TooBusy: too many passwords are being hashed.
        """
        await self.find(code)  # hashing is expensive: only for a valid code
        if wrong_password := await check_password(password):
            raise ValidationFailed((wrong_password,))
        hashed = await self._hashing.hash(password)

        def work(issuance: Issuance) -> NewPassword:
            user = self._user_of(issuance.tx, code, issuance.now_ms)
            if user.email_verified_on is None:
                return NewPassword(self._claims.claim(issuance, user, password_hash=hashed), is_claim=True)
            issuance.tx.accounts.set_sign_in(user.key, account_type=LOCAL, password_hash=hashed, now_ms=issuance.now_ms)
            note(
                issuance.tx,
                AuditEvent.PASSWORD_CHANGED,
                f"account {user.id}",
                now_ms=issuance.now_ms,
                actor=f"user {user.id}",
            )
            issuance.end_everything_and_grants_of(user.key)
            return NewPassword(user, is_claim=False)

        return await self._tokens.change(work)

    def _user_of(self, tx: Transaction, code: str, now_ms: int) -> UserRecord:
        reset = tx.codes.reset(token_hash(code), now_ms=now_ms) if is_id(code) else None
        user = tx.accounts.user(reset.user) if reset is not None and reset.user is not None else None
        if user is None or reset is None or reset.password != password_mark(user) or self._uses_provider(user):
            raise LinkOver
        return user

    def _uses_provider(self, user: UserRecord) -> bool:
        """The user signs in with a configured identity provider, and has no password here."""
        return user.account_type in self._providers and user.password_hash is None
