"""Tells who follows long work that it went on (reference 27.22).

A hint says which work has changed; who gets it reads the call that shows the work. Before each hint the broker asks
what that call would ask: whether the token is still good, and whether its caller may see the work now.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import msgspec
import structlog
import trio

from broker.accounts.permissions import ADMINISTRATORS
from broker.accounts.room import AccountsRoom
from broker.accounts.tokens import Caller
from broker.clock import Clock
from broker.device_types.catalog import DeviceType, DeviceTypes
from broker.errors import DomainError
from broker.facts import (
    BackupProgressed,
    DeliveriesProgressed,
    FactPhase,
    Router,
    TaskProgressed,
    UploadProgressed,
    WorkProgressed,
)
from broker.loops import Loop, Wakeup
from broker.subscriptions.subscription import Subscription
from broker.subscriptions.subscriptions import Subscriptions
from config.limits import WORKS_TOLD
from storage.database import Database
from storage.keys import Milliseconds

_GAP_SECONDS: Final = 0.25
_STORE_SECONDS: Final = 1.0
_log = structlog.get_logger(__name__)


class Work(StrEnum):
    """The kinds of long work."""

    UPLOAD = "upload"
    TASK = "task"
    DELIVERIES = "deliveries"
    BACKUP = "backup"


_KINDS: Final[Mapping[type[WorkProgressed], Work]] = {
    UploadProgressed: Work.UPLOAD,
    TaskProgressed: Work.TASK,
    DeliveriesProgressed: Work.DELIVERIES,
    BackupProgressed: Work.BACKUP,
}


class Hint(msgspec.Struct, frozen=True):
    """`data` names the work as its calls do."""

    name: str
    ts: Milliseconds
    data: Mapping[str, str]


@dataclass(frozen=True, eq=False)
class Follower:
    """A subscriber to work of some kinds: the same object for as long as it follows. `offer` returns at once."""

    kinds: frozenset[Work]
    token: str = field(repr=False)
    offer: Callable[[Hint], object]


class _Subject(msgspec.Struct, frozen=True):
    """The object that decides who may see work: a device type or a subscription; neither for a backup."""

    data: Mapping[str, str]
    type_: DeviceType | None = None
    subscription: Subscription | None = None


class ProgressFeed:
    """Sends at most one hint per work and 0.25 s, however often the work progresses."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        router: Router,
        accounts: AccountsRoom,
        catalog: DeviceTypes,
        subscriptions: Subscriptions,
    ) -> None:
        self._database = database
        self._clock = clock
        self._tokens = accounts.tokens
        self._permissions = accounts.permissions
        self._operators = accounts.operators
        self._catalog = catalog
        self._subscriptions = subscriptions
        self._followers: dict[Follower, None] = {}
        #: Changed works since the last hints, in the order of their first changes.
        self._waiting: dict[WorkProgressed, None] = {}
        self._wakeup = Wakeup()
        for kind in _KINDS:
            router.subscribe(kind, self._progressed, FactPhase.EFFECT)
        self.tell_forever = Loop(
            self._tell, wakeup=self._wakeup, failure="progress_not_told", retry_seconds=_STORE_SECONDS
        ).run

    @contextmanager
    def follow(self, follower: Follower) -> Iterator[None]:
        self._followers[follower] = None
        try:
            yield
        finally:
            del self._followers[follower]

    async def require(self, caller: Caller, kinds: frozenset[Work]) -> None:
        """Backups are for operators; who may see other work is decided for each. Raises PermissionDenied."""
        if Work.BACKUP in kinds:
            await self._operators.require(caller)

    def _progressed(self, fact: WorkProgressed) -> None:
        # Changes beyond `WORKS_TOLD` waiting ones are left out: a page reads now and then without a hint, too.
        if self._followers and len(self._waiting) < WORKS_TOLD:
            self._waiting[fact] = None
            self._wakeup.set()

    async def _tell(self) -> bool:
        """Tell of all that waits. Raises StoreError; then what was not told waits again."""
        waiting, self._waiting = self._waiting, {}
        try:
            for fact in tuple(waiting):
                await self._tell_of(fact)
                del waiting[fact]
        finally:
            self._waiting = waiting | self._waiting
        await trio.sleep(_GAP_SECONDS)
        return bool(self._waiting)

    async def _tell_of(self, fact: WorkProgressed) -> None:
        kind = _KINDS[type(fact)]
        followers = [one for one in self._followers if kind in one.kinds]
        if not followers:
            return
        subject = None
        with suppress(DomainError):  # its device type is gone
            subject = await self._find(fact)
        if subject is None:
            return
        hint = Hint(f"progress.{kind}", self._clock.now_ms(), subject.data)
        decided: dict[str, bool] = {}  # by token: a person may have many pages open
        for follower in followers:
            if follower.token not in decided:
                decided[follower.token] = await self._may_see(follower.token, subject)
            if decided[follower.token] and follower in self._followers:
                try:
                    follower.offer(hint)
                except Exception:  # noqa: BLE001 - a failing follower must not harm the others
                    _log.exception("progress_follower_failed", follower=repr(follower))

    async def _find(self, fact: WorkProgressed) -> _Subject | None:
        """None for work that is gone."""
        match fact:
            case UploadProgressed(upload_id, device_type):
                type_ = await self._catalog.get(device_type)
                return _Subject({"uploadId": upload_id, "dtid": type_.id}, type_)
            case TaskProgressed(key):
                task = await self._database.read(lambda tx: tx.tasks.task(key))
                if task is None:
                    return None
                type_ = await self._catalog.get(task.device_type)
                return _Subject({"id": task.id, "dtid": type_.id}, type_)
            case DeliveriesProgressed(key):
                subscription = self._subscriptions.get(key)
                if subscription is None:
                    return None
                return _Subject({"subscriptionId": subscription.id}, subscription=subscription)
            case _:
                return _Subject({})

    async def _may_see(self, token: str, subject: _Subject) -> bool:
        """Whether the holder of the token may see the work: the same checks as the calls that show it."""
        with suppress(DomainError):
            caller = await self._tokens.caller(token)
            if subject.type_ is not None:
                await self._permissions.require_role(caller, subject.type_.record, ADMINISTRATORS)
            elif subject.subscription is not None:
                await self._subscriptions.require(caller, subject.subscription.record)
            else:
                await self._operators.require(caller)
            return True
        return False
