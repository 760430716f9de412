"""Deleting users (reference 5.7).

One transaction decides: from then on no query finds the user, whose tokens, sessions and grants are gone. The worker
removes everything else in small steps, which can be repeated: after a stop or a kill the next start goes on.
"""

from typing import Final

import msgspec
import structlog
import trio

from broker.accounts.issuance import Issuance
from broker.accounts.permissions import Role
from broker.accounts.tokens import Tokens
from broker.cluster.kinds import publish
from broker.errors import Conflict, UserNotFound
from broker.facts import GrantsChanged
from broker.leaving.erasing import Erasing
from broker.loops import Loop, Wakeup
from broker.trace.audit import AuditEvent, note
from storage.database import Database
from storage.keys import UserKey
from storage.leaving import LeavingRecord
from storage.records import UserRecord
from storage.sql import StoreError

#: Longest wait of a call for the end of everything that others see. The worker goes on.
_PATIENCE_SECONDS: Final = 30.0
_RETRY_SECONDS: Final = 5.0
_LOOK_SECONDS: Final = 60.0
_log = structlog.get_logger(__name__)


class LeavingStatistics(msgspec.Struct, frozen=True):
    """`under_way` as of the worker's last look; `deleted` since the start."""

    under_way: int
    deleted: int


class _Stages(msgspec.Struct, frozen=True, eq=False):
    """How far the worker is, for a call that waits."""

    user: UserKey
    unseen: trio.Event = msgspec.field(default_factory=trio.Event)
    gone: trio.Event = msgspec.field(default_factory=trio.Event)


class Leaving:
    """The caller of a method has checked who may delete the user."""

    def __init__(self, database: Database, tokens: Tokens, erasing: Erasing, wakeup: Wakeup) -> None:
        self._database = database
        self._tokens = tokens
        self._erasing = erasing
        self._wakeup = wakeup
        self._waiting: list[_Stages] = []
        self._is_log_clean = True
        self._under_way = self._deleted = 0
        self.work_forever = Loop(
            self._work,
            every=_LOOK_SECONDS,  # a call may have been cancelled between its commit and the wakeup
            wakeup=self._wakeup,
            at_once=True,
            failure="user_not_removed",
            retry_seconds=_RETRY_SECONDS,
            deletes=True,
        ).run

    async def delete(self, user: UserRecord, *, even_last: bool = False, until_gone: bool = False) -> None:
        """Delete a user. Return when nobody sees anything of the user; what is stored goes soon after.

        Args:
            user: as it was found.
            even_last: also when an organization has no administrator then.
            until_gone: return when nothing is stored any more, which may take minutes.

        Raises:
            UserNotFound: the user was deleted.
            Conflict: the user is the last administrator of an organization.
            StoreError: nothing was deleted.
        """
        stages = _Stages(user.key)

        def work(issuance: Issuance) -> None:
            tx = issuance.tx
            known = tx.accounts.user(user.key)
            if known is None:
                raise UserNotFound
            last_in = [] if even_last else tx.leaving.last_in(user.key, Role.ADMINISTRATOR)
            if last_in:
                raise Conflict(f"Last administrator of {', '.join(last_in)}: first give another member the role")
            granted = {grant.application for grant in tx.accounts.grants_of(user.key)}
            issuance.end_everything_of(user.key)
            for token in tx.accounts.tokens_of_user(user.key):
                issuance.end_token(token)
            publish(tx, *(GrantsChanged(user.key, application, ()) for application in sorted(granted)))
            tx.leaving.begin(known, now_ms=issuance.now_ms)
            note(tx, AuditEvent.ACCOUNT_DELETED, f"account {user.id}", now_ms=issuance.now_ms)

        self._waiting.append(stages)  # before the worker can see it
        try:
            await self._tokens.change(work)
            self._wakeup.set()
            if until_gone:
                await self._wait_gone(stages)
            with trio.move_on_after(_PATIENCE_SECONDS):
                await stages.unseen.wait()
        finally:
            self._waiting.remove(stages)

    async def _wait_gone(self, stages: _Stages) -> None:
        """Another node may do the work."""
        while not stages.gone.is_set():
            leaving = await self._database.read(lambda tx: tx.leaving.all())
            if all(one.user != stages.user for one in leaving):
                stages.unseen.set()
                return
            with trio.move_on_after(_RETRY_SECONDS):
                await stages.gone.wait()

    async def _work(self) -> bool:
        """Whether something is left to do."""
        leaving = await self._database.read(lambda tx: tx.leaving.all())
        self._under_way = len(leaving)
        for one in leaving:
            try:
                await self._remove(one)
            except StoreError:
                raise
            except Exception:  # noqa: BLE001 - a bug must not hold up others who leave; the next look tries again
                _log.exception("user_not_removed", user=one.id)
            else:
                self._under_way -= 1
        if not self._is_log_clean:
            self._is_log_clean = await self._database.forget_log()
            if not self._is_log_clean:  # somebody reads in it
                await self._wakeup.wait(_RETRY_SECONDS)
                return True
        return False

    async def _remove(self, one: LeavingRecord) -> None:
        while True:
            await self._erasing.hide(one)
            for stages in self._waiting_for(one):
                stages.unseen.set()
            await self._erasing.remove(one)
            if await self._database.write(lambda tx: tx.leaving.end(one)):
                break
        for stages in self._waiting_for(one):
            stages.gone.set()
        self._is_log_clean = False
        self._deleted += 1
        _log.info("user_deleted", user=one.id)

    def _waiting_for(self, one: LeavingRecord) -> list[_Stages]:
        return [stages for stages in self._waiting if stages.user == one.user]

    def statistics(self) -> LeavingStatistics:
        return LeavingStatistics(self._under_way, self._deleted)
