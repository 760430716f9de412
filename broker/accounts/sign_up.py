"""Opening an account, where the operator allows sign-up (reference 4.2), and the rules for new accounts."""

import re
from typing import Final

from broker.accounts.common_passwords import common_password_finding
from broker.accounts.hashing import Hashing
from broker.accounts.throttle import Throttle
from broker.accounts.users import LOCAL
from broker.clock import Clock
from broker.errors import EmailTaken, Finding, NotFound, ValidationFailed
from broker.ids import new_id
from broker.names import name_problem
from broker.trace.audit import AuditEvent, note
from broker.trace.origin import address_key
from config.limits import (
    EMAIL_MAX_CHARACTERS,
    NAME_MAX_CHARACTERS,
    PASSWORD_MAX_CHARACTERS,
    PASSWORD_MIN_CHARACTERS,
    SIGN_UP_WINDOW_SECONDS,
    SIGN_UPS,
)
from config.settings import Accounts
from storage.database import Database
from storage.records import NEW_KEY, UserRecord
from storage.transaction import Transaction

_WRONG_LENGTH: Final = Finding(
    "password", (f"A password has {PASSWORD_MIN_CHARACTERS} to {PASSWORD_MAX_CHARACTERS} characters.",)
)
_EMAIL: Final = re.compile(r"[^\s@<>]+@[^\s@<>]+")


class SignUp:
    def __init__(self, database: Database, clock: Clock, hashing: Hashing, settings: Accounts) -> None:
        self._database = database
        self._clock = clock
        self._hashing = hashing
        self._throttle = Throttle(clock, misses=SIGN_UPS, window_seconds=SIGN_UP_WINDOW_SECONDS)
        self.is_open = settings.signup == "open"

    async def open_account(self, *, email: str, password: str, full_name: str, address: str) -> UserRecord:
        """A new user.

        Raises:
            NotFound: sign-up is closed.
            ValidationFailed: with every finding, by form field.
            EmailTaken: there is an account with this address.
            TooManyAttempts: too many attempts came from this IP address.
            TooBusy: too many passwords are being hashed.
        """
        if not self.is_open:
            raise NotFound
        email, full_name = email.strip(), full_name.strip()
        await check_account(email=email, password=password, full_name=full_name)
        self._hashing.require_room()
        self._throttle.count(address_key(address))
        hashed = await self._hashing.hash(password)
        now_ms = self._clock.now_ms()
        return await self._database.write(
            lambda tx: add_account(
                tx, email, full_name=full_name, password_hash=hashed, now_ms=now_ms, email_verified=False
            )
        )


def add_account(
    tx: Transaction,
    email: str,
    *,
    full_name: str,
    password_hash: str | None,
    now_ms: int,
    id_: str | None = None,
    account_type: str = LOCAL,
    email_verified: bool = True,
) -> UserRecord:
    """A new user with a user name that no other user has. Raises EmailTaken."""
    if tx.accounts.user_by_email(email) is not None:
        raise EmailTaken
    name = free_user_name(tx, email)
    user = tx.accounts.add_user(
        UserRecord(
            key=NEW_KEY,
            id=id_ or new_id(),
            email=email,
            name=name,
            full_name=full_name or name,
            account_type=account_type,
            password_hash=password_hash,
            created_on=now_ms,
            modified_on=now_ms,
            email_verified_on=now_ms if email_verified else None,
        )
    )
    note(tx, AuditEvent.ACCOUNT_OPENED, f"account {user.id}", now_ms=now_ms, account_type=account_type)
    return user


async def check_account(*, email: str, password: str, full_name: str) -> None:
    """Raises ValidationFailed with every finding, by form field."""
    findings = []
    if not is_email(email):
        findings.append(Finding("email", ("This is not an e-mail address.",)))
    if wrong_password := await check_password(password):
        findings.append(wrong_password)
    if wrong_name := check_full_name(full_name):
        findings.append(wrong_name)
    if findings:
        raise ValidationFailed(tuple(findings))


def check_full_name(full_name: str) -> Finding | None:
    """The problem of a display name; None without one."""
    if len(full_name) > NAME_MAX_CHARACTERS:
        return Finding("fullName", (f"A name has at most {NAME_MAX_CHARACTERS} characters.",))
    problem = name_problem(full_name)
    return None if problem is None else Finding("fullName", (f"A name {problem}.",))


def is_email(text: str) -> bool:
    """The text is an e-mail address that a person may open an account with."""
    return has_email_form(text) and text.isprintable()


def has_email_form(text: str) -> bool:
    return len(text) <= EMAIL_MAX_CHARACTERS and _EMAIL.fullmatch(text) is not None


async def check_password(password: str) -> Finding | None:
    """The problem of a new password; None without one."""
    return await common_password_finding(password) if is_password(password) else _WRONG_LENGTH


def is_password(text: str) -> bool:
    return PASSWORD_MIN_CHARACTERS <= len(text) <= PASSWORD_MAX_CHARACTERS


_SHORTEST: Final = 5
_LONGEST: Final = 36


def free_user_name(tx: Transaction, email: str) -> str:
    """A generated user name (reference 5.1): the local part of the e-mail address, with a number if it is too short or
    taken.
    """
    stem = re.sub(r"[^a-z0-9_.-]", "_", email.partition("@")[0].lower())
    name, number = stem[:_LONGEST], 0
    while len(name) < _SHORTEST or tx.accounts.user_named(name) is not None:
        number += 1
        digits = str(number).zfill(_SHORTEST - len(stem))
        name = stem[: _LONGEST - len(digits)] + digits
    return name
