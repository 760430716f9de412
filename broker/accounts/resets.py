"""A new password for those who forgot theirs, by way of their mail.

Who asks learns nothing about who has an account: the answer is the same, and so is the work. The mail has a one-time
code, of which the store has the hash. Setting a password ends whatever stood on the old one: browser sessions and every
token that came of signing in. Who resets a password because somebody else knew it must be rid of what that person
authorized, and nothing tells the two apart. Devices keep their own tokens.
"""

import structlog

from broker.accounts.hashing import Hashing
from broker.accounts.issuance import Issuance
from broker.accounts.links import LinkOver
from broker.accounts.sessions import password_mark, user_called
from broker.accounts.sign_up import WRONG_LENGTH, is_password
from broker.accounts.throttle import Throttle, address_key
from broker.accounts.tokens import Tokens
from broker.accounts.users import LOCAL
from broker.clock import Clock
from broker.errors import ValidationFailed
from broker.ids import is_id, new_id
from broker.mail import Letter, Mail, Mails, NoPasswordHere, PasswordReset
from broker.secrets import token_hash
from config.limits import PASSWORD_RESET_SECONDS, PASSWORD_RESET_WINDOW_SECONDS, PASSWORD_RESETS
from config.settings import Accounts
from storage.database import Database, Transaction
from storage.records import PasswordResetRecord, UserRecord

_NOBODY = "nobody@localhost"
_log = structlog.get_logger(__name__)


class PasswordResets:
    def __init__(
        self, database: Database, clock: Clock, tokens: Tokens, hashing: Hashing, mails: Mails, settings: Accounts
    ) -> None:
        self._database = database
        self._clock = clock
        self._tokens = tokens
        self._hashing = hashing
        self._mails = mails
        self._providers = frozenset(provider.name for provider in settings.providers)
        self._throttle = Throttle(clock, misses=PASSWORD_RESETS, window_seconds=PASSWORD_RESET_WINDOW_SECONDS)

    async def ask(self, name: str, *, address: str) -> None:
        """Send a mail to the account of this e-mail address or user name, if there is one and it had not too many.

        Raises:
            TooManyAttempts: too many were asked for from this IP address.
        """
        name, address = name.strip(), address_key(address)
        self._throttle.check(address)
        self._throttle.missed(address)
        user = await self._database.read(lambda tx: user_called(tx, name))
        code, now_ms = new_id(), self._clock.now_ms()
        expires_on = now_ms + PASSWORD_RESET_SECONDS * 1000
        letter = self._letter(user, code, expires_on, cause=address)

        def work(tx: Transaction) -> None:
            tx.codes.purge_resets(now_ms=now_ms)
            is_sent = user is not None and letter is not None and self._mails.add(tx, letter)
            receiver = user.key if user is not None and is_sent and not self._is_elsewhere(user) else None
            # A row for nobody, too: how long it takes must not tell who has an account.
            tx.codes.add_reset(PasswordResetRecord(token_hash(code), receiver, password_mark(user), expires_on))

        await self._database.write(work)

    def _letter(self, user: UserRecord | None, code: str, expires_on: int, *, cause: str) -> Letter | None:
        """Composed for nobody, too; only somebody's is sent."""
        mail: Mail = PasswordReset(code=code, expires_on=expires_on)
        if user is not None and self._is_elsewhere(user):
            mail = NoPasswordHere(provider=user.account_type)
        try:
            return self._mails.compose(user.email if user is not None else _NOBODY, mail, cause=cause)
        except ValidationFailed:
            _log.warning("reset_mail_has_no_address", user=user.id if user is not None else None)
            return None

    async def find(self, code: str) -> UserRecord:
        """Whose password a code is for. Raises LinkOver."""
        now_ms = self._clock.now_ms()
        return await self._database.read(lambda tx: self._user_of(tx, code, now_ms))

    async def set_password(self, code: str, password: str) -> UserRecord:
        """Set a new password, and end what stood on the old one. The code is used then, and others are, too.

        Raises:
            LinkOver: the code is not, or no longer, good for it.
            ValidationFailed: the password is too short or too long.
            TooBusy: too many passwords are hashed in this moment.
        """
        await self.find(code)  # nobody's password is hashed for nothing
        if not is_password(password):
            raise ValidationFailed((WRONG_LENGTH,))
        hashed = await self._hashing.hash(password)

        def work(issuance: Issuance) -> UserRecord:
            user = self._user_of(issuance.tx, code, issuance.now_ms)
            issuance.tx.accounts.verify_email(user.key, now_ms=issuance.now_ms)
            issuance.tx.accounts.set_sign_in(user.key, account_type=LOCAL, password_hash=hashed, now_ms=issuance.now_ms)
            issuance.end_everything_of(user.key)
            return user

        return await self._tokens.change(work)

    def _user_of(self, tx: Transaction, code: str, now_ms: int) -> UserRecord:
        reset = tx.codes.reset(token_hash(code), now_ms=now_ms) if is_id(code) else None
        user = tx.accounts.user(reset.user) if reset is not None and reset.user is not None else None
        if user is None or reset is None or reset.password != password_mark(user) or self._is_elsewhere(user):
            raise LinkOver
        return user

    def _is_elsewhere(self, user: UserRecord) -> bool:
        """The user signs in with a provider that is configured, and has no password here."""
        return user.account_type in self._providers and user.password_hash is None
