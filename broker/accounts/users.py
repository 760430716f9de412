"""User profiles (reference 5.1)."""

from typing import Final

from broker.accounts.applications import Application
from broker.accounts.consent import may_change_profile
from broker.accounts.tokens import Caller, TokenKind
from broker.errors import PermissionDenied, UserNotFound
from storage.database import Database, Transaction
from storage.keys import ApplicationKey
from storage.records import UserRecord

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

    async def to_change(self, user_id: str, caller: Caller) -> UserRecord:
        """The caller's own user, for changing how the person signs in.

        Raises:
            UserNotFound: there is no such user.
            PermissionDenied: another user's token, another kind of token, or the token of an application that may not
                change profiles.
        """
        user, key = await self.find(user_id, caller), caller.application
        if caller.kind is not TokenKind.USER or caller.user != user.key:
            raise PermissionDenied("access to this user")
        if key is None or not await self._database.read(lambda tx: _may_change_profile(tx, key)):
            raise PermissionDenied("WRITE on the profile")
        return user


def _may_change_profile(tx: Transaction, application: ApplicationKey) -> bool:
    record = tx.accounts.application(application)
    return record is not None and may_change_profile(tx, Application(record))
