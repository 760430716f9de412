"""User profiles (reference 5.1)."""

from dataclasses import replace
from typing import Final

from broker.accounts.tokens import Caller, TokenKind
from broker.clock import Clock
from broker.errors import EmailTaken, PermissionDenied, UserNotFound
from broker.facts import Router, UserProfileUpdated
from storage.database import Database, Transaction
from storage.records import UserRecord

LOCAL: Final = "LOCAL"  # the account type of users with a password here; else it is the provider's name


class Users:
    def __init__(self, database: Database, clock: Clock, router: Router) -> None:
        self._database = database
        self._clock = clock
        self._router = router

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

    async def change_profile(self, user: int, *, email: str | None = None, full_name: str | None = None) -> UserRecord:
        """Change the members that are not None. Raises UserNotFound, EmailTaken."""
        now_ms = self._clock.now_ms()

        def work(tx: Transaction) -> tuple[UserRecord, bool]:
            known = tx.accounts.user(user)
            if known is None:
                raise UserNotFound
            wanted = replace(
                known,
                email=known.email if email is None else email,
                full_name=known.full_name if full_name is None else full_name,
            )
            if wanted == known:
                return known, False
            namesake = tx.accounts.user_by_email(wanted.email)
            if namesake is not None and namesake.key != user:
                raise EmailTaken
            tx.accounts.change_user(
                user,
                email=wanted.email,
                full_name=wanted.full_name,
                password_hash=known.password_hash,
                now_ms=now_ms,
            )
            return replace(wanted, modified_on=now_ms), True

        def tell(done: tuple[UserRecord, bool]) -> None:
            changed, is_new = done
            if is_new:
                self._router.publish(UserProfileUpdated(changed.key, changed.id, now_ms))

        changed, _is_new = await self._database.write(work, announce=tell)
        return changed
