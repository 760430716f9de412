"""User profiles (reference 5.1)."""

from typing import Final

import structlog

from broker.accounts.permissions import Permissions
from broker.accounts.tokens import Caller, TokenKind
from broker.errors import REQUIRED, Finding, PermissionDenied, UserNotFound, invalid
from storage.database import Database
from storage.keys import UserKey
from storage.records import UserRecord
from storage.transaction import Transaction

_REPORTED: Final = 100
_log = structlog.get_logger(__name__)

LOCAL: Final = "LOCAL"  # the account type of users with a password here; else it is the provider's name


class Users:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def self_of(self, caller: Caller) -> UserRecord:
        """The user of a user token. Raises PermissionDenied for other kinds of token."""
        key = caller.user
        if caller.kind is not TokenKind.USER or key is None:
            raise PermissionDenied("a user token")
        user = await self._database.read(lambda tx: tx.accounts.user(key))
        if user is None:
            raise UserNotFound
        return user

    async def find(self, user_id: str, caller: Caller | None = None) -> UserRecord:
        """A user by id; `self` stands for the caller's user (reference 1.1). Raises UserNotFound."""
        if user_id == "self" and caller is not None and caller.kind is TokenKind.USER:
            return await self.self_of(caller)
        user = await self._database.read(lambda tx: tx.accounts.user_by_id(user_id))
        if user is None:
            raise UserNotFound
        return user

    async def named(self, name: str) -> UserRecord:
        """A user by e-mail address, id or user name, for the operator. Raises UserNotFound."""

        user = await self._database.read(lambda tx: user_named(tx, name))
        if user is None:
            raise UserNotFound
        return user

    async def listed(self, *, limit: int) -> list[UserRecord]:
        """The first users by e-mail address, for the operator."""
        return await self._database.read(lambda tx: tx.accounts.users(limit=limit))


def user_named(tx: Transaction, name: str) -> UserRecord | None:
    """The user with this e-mail address, id or user name."""
    return tx.accounts.user_by_email(name) or tx.accounts.user_by_id(name) or tx.accounts.user_named(name)


async def report_same_addresses(database: Database) -> None:
    """Log which accounts of an older store have the address of another one, written differently (reference 5.1)."""
    for user, holder in await database.read(lambda tx: tx.accounts.without_address_key(limit=_REPORTED)):
        _log.warning(
            "same_address",
            account=user.id,
            user_name=user.name,
            has_the_address_of=holder.id if holder is not None else None,
            advice="It can be signed in to with its user name, or its address as it is written in it: delete one of the"
            " two, or give one another address by its id in the provision file.",
        )


async def user_in_body(
    users: Users, permissions: Permissions, caller: Caller, uid: object, findings: list[Finding]
) -> UserKey | None:
    """The user of `uid` in the body of a scene or model (reference 12.5, 12.6); without it, that of the token.

    None: there is no such user, and a finding says so.

    Raises PermissionDenied when the caller does not act for the user.
    """
    if uid is None and caller.user is not None:
        return caller.user
    if not isinstance(uid, str) or not uid:
        findings.append(Finding("uid", (invalid("must be a text") if uid else REQUIRED,)))
        return None
    try:
        user = (await users.find(uid, caller)).key
    except UserNotFound as error:
        findings.append(Finding("uid", (str(error),)))
        return None
    await permissions.require_user(caller, user)
    return user
