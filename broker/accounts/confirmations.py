"""Proving an address while signed in (reference 4.8): the holder of the account brings back the code of a mail.

The code is sealed and not stored. It is good only together with a session of its account: a person who has
only the mailbox claims the address with a new password instead (claims.py), and a person who has only the account does
not get the mail.
"""

import msgspec
from cryptography.fernet import InvalidToken

from broker.accounts.throttle import Throttle
from broker.clock import Clock
from broker.errors import LinkOver
from broker.mail import AddressConfirmation, Mails
from broker.secrets import Vault
from broker.trace.audit import AuditEvent, note
from config.limits import ADDRESS_CONFIRMATION_SECONDS, CONFIRMATION_WINDOW_SECONDS, CONFIRMATIONS
from config.mail import folded_address
from storage.database import Database
from storage.records import UserRecord
from storage.transaction import Transaction


class _Code(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="address"):
    user: int
    address: str
    expires_on: int


class Confirmations:
    def __init__(self, database: Database, clock: Clock, vault: Vault, mails: Mails) -> None:
        self._database = database
        self._clock = clock
        self._vault = vault
        self._mails = mails
        self._throttle = Throttle(clock, misses=CONFIRMATIONS, window_seconds=CONFIRMATION_WINDOW_SECONDS)

    async def ask(self, user: UserRecord) -> None:
        """Send a mail with the code, unless the address is proved already.

        Raises:
            TooManyAttempts: the user asked too often.
            ValidationFailed: no mail can be sent to the address.
        """
        if user.email_verified_on is not None:
            return
        self._throttle.count(f"user {user.key}")
        expires_on = self._clock.now_ms() + ADDRESS_CONFIRMATION_SECONDS * 1000
        content = msgspec.json.encode(_Code(user.key, folded_address(user.email), expires_on)).decode()
        mail = AddressConfirmation(code=self._vault.seal(content).decode(), expires_on=expires_on)
        letter = self._mails.compose(user.email, mail, cause=user.id)
        await self._database.write(lambda tx: self._mails.add(tx, letter))

    async def confirm(self, user: UserRecord, code: str) -> None:
        """Mark the address as proved. Raises LinkOver: the code is for another account, or too old."""
        now_ms = self._clock.now_ms()
        try:
            found = msgspec.json.decode(self._vault.open(code.encode()), type=_Code)
        except (InvalidToken, msgspec.DecodeError, UnicodeEncodeError):
            raise LinkOver from None

        def work(tx: Transaction) -> None:
            known = tx.accounts.user(user.key)
            if known is None or found != _Code(known.key, folded_address(known.email), found.expires_on):
                raise LinkOver
            if found.expires_on <= now_ms:
                raise LinkOver
            if known.email_verified_on is None:
                tx.accounts.verify_email(known.key, now_ms=now_ms)
                note(tx, AuditEvent.ADDRESS_PROVED, f"account {known.id}", now_ms=now_ms)

        await self._database.write(work)
