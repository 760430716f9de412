"""People who open an account for themselves, where the operator lets them (compatibility.md 4.2)."""

import re
from typing import Final

import trio

from broker.accounts.sessions import HASHED_AT_ONCE
from broker.accounts.throttle import Throttle, address_key
from broker.accounts.user_names import free_user_name
from broker.clock import Clock
from broker.errors import EmailTaken, Finding, NotFound, ValidationFailed
from broker.ids import new_id
from broker.secrets import Passwords
from config.limits import (
    EMAIL_MAX_CHARACTERS,
    NAME_MAX_CHARACTERS,
    PASSWORD_MAX_CHARACTERS,
    PASSWORD_MIN_CHARACTERS,
    SIGN_UP_WINDOW_SECONDS,
    SIGN_UPS,
)
from config.settings import Accounts
from storage.database import Database, Transaction
from storage.records import UserRecord

_EMAIL: Final = re.compile(r"[^\s@<>]+@[^\s@<>]+")


class SignUp:
    def __init__(self, database: Database, clock: Clock, passwords: Passwords, settings: Accounts) -> None:
        self._database = database
        self._clock = clock
        self._passwords = passwords
        self._throttle = Throttle(clock, misses=SIGN_UPS, window_seconds=SIGN_UP_WINDOW_SECONDS)
        self._hashing = trio.CapacityLimiter(HASHED_AT_ONCE)
        self.is_open = settings.signup == "open"

    async def open_account(self, *, email: str, password: str, full_name: str, address: str) -> UserRecord:
        """A new user.

        Raises:
            NotFound: people do not sign up here.
            ValidationFailed: with every finding, by form field.
            EmailTaken: someone has this address already.
            TooManyAttempts: too many tries came from this IP address.
        """
        if not self.is_open:
            raise NotFound
        email, full_name = email.strip(), full_name.strip()
        _check(email, password, full_name)
        key = address_key(address)
        self._throttle.check(key)
        self._throttle.missed(key)
        hashed = await trio.to_thread.run_sync(self._passwords.hash, password, limiter=self._hashing)
        now_ms = self._clock.now_ms()

        def work(tx: Transaction) -> UserRecord:
            if tx.accounts.user_by_email(email) is not None:
                raise EmailTaken
            name = free_user_name(tx, email)
            return tx.accounts.add_user(
                new_id(), email=email, name=name, full_name=full_name or name, password_hash=hashed, now_ms=now_ms
            )

        return await self._database.write(work)


def _check(email: str, password: str, full_name: str) -> None:
    findings = []
    if len(email) > EMAIL_MAX_CHARACTERS or not email.isprintable() or _EMAIL.fullmatch(email) is None:
        findings.append(Finding("email", ("This is not an e-mail address.",)))
    if not PASSWORD_MIN_CHARACTERS <= len(password) <= PASSWORD_MAX_CHARACTERS:
        findings.append(
            Finding("password", (f"A password has {PASSWORD_MIN_CHARACTERS} to {PASSWORD_MAX_CHARACTERS} characters.",))
        )
    if len(full_name) > NAME_MAX_CHARACTERS or not full_name.isprintable():
        findings.append(Finding("fullName", (f"A name has at most {NAME_MAX_CHARACTERS} characters.",)))
    if findings:
        raise ValidationFailed(tuple(findings))
