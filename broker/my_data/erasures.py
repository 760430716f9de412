"""Deleting messages that an owner no longer wants kept, and the worker that does it (reference 9.12).

The worker takes the oldest erasure of each user, and a step of one of them after the other, so that nobody waits for
what others delete. A step is so small that other writes hardly wait for it. When the messages are gone, rollups and the
snapshot are counted again, in such steps, too. Each step is found again after a restart: what is deleted is not found a
second time, and what was counted again is counted once more.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

import msgspec
import structlog
import trio
from msgspec.structs import replace

from broker.accounts.tokens import Caller
from broker.clock import Clock
from broker.devices.registry import Device, Devices
from broker.errors import (
    DeviceNotFound,
    NotFound,
    PermissionDenied,
    TryLater,
    ValidationFailed,
    invalid,
)
from broker.ids import new_id
from broker.loops import OwnersLoop, Wakeup
from broker.messages.recounts import Erased, Recounts
from broker.trace.audit import AuditEvent, note
from broker.trace.origin import set_actor
from config.limits import ERASURES_AT_ONCE, ERASURES_KEPT_DAYS, ERASURES_OF_USER, ERASURES_SHOWN
from storage.database import Database
from storage.erasures import ErasureRecord
from storage.fair_places import FairPlaces
from storage.keys import DeviceKey, Milliseconds, Position, UserKey
from storage.leases import Holder
from storage.message_searches import Range, SortKey
from storage.transaction import Transaction

_LOOK_SECONDS: Final = 60.0
_RETRY_SECONDS: Final = 5.0
_PAUSE_SECONDS: Final = 0.01  # other writes commit
_STEP_ROWS: Final = 250
_STEP_ENTRIES: Final = 2_000
_LATEST_MS: Final = 2**62
_DAY_MS: Final = 86_400_000
_TRY_LATER_SECONDS: Final = 60
_log = structlog.get_logger(__name__)


@dataclass(eq=False)
class TooManyErasures(TryLater):
    """A user has as many that go on as may be at a time."""

    template = "Too many deletions go on. Try again in {retry_seconds} seconds"


class EndsExports(Protocol):
    """Ends some exports that have messages of a device in a range of times, in the transaction; whether all."""

    def __call__(self, tx: Transaction, device: DeviceKey, *, start_ms: int, end_ms: int) -> bool: ...


class ShownErasure(NamedTuple):
    record: ErasureRecord
    sdid: str  # of a device that is gone: empty


class ErasureStatistics(msgspec.Struct, frozen=True):
    """Counts since the start."""

    finished: int
    messages: int


class Erasures:
    def __init__(
        self,
        database: Database,
        devices: Devices,
        recounts: Recounts,
        lease: Holder,
        clock: Clock,
        wakeup: Wakeup,
        end_exports: EndsExports,
    ) -> None:
        self._database, self._devices, self._recounts = database, devices, recounts
        self._lease, self._clock, self._wakeup, self._end_exports = lease, clock, wakeup, end_exports
        #: How far the search for messages to delete has come: they are not looked for twice.
        self._places: dict[str, SortKey] = {}
        self._steps = FairPlaces(1)
        self._finished = self._messages = 0
        self.work_forever = OwnersLoop(
            self._oldest,
            self._work,
            owners_at_once=ERASURES_AT_ONCE,
            failure="messages_not_deleted",
            every=_LOOK_SECONDS,
            retry_seconds=_RETRY_SECONDS,
            wakeup=wakeup,
            deletes=True,
        ).run

    async def create(self, caller: Caller, device: Device, start_ms: int, end_ms: int) -> ShownErasure:
        """Delete the messages of a device with `start_ms <= ts <= end_ms` that are stored by now.

        The caller has checked the permission. Raises ValidationFailed, TooManyErasures.
        """
        if (user := caller.user) is None:
            raise PermissionDenied("a user's token")
        if not 0 <= start_ms <= end_ms < _LATEST_MS:
            raise ValidationFailed.of("startDate", invalid("must not be before 1970, nor after endDate"))
        now_ms = self._clock.now_ms()
        record = ErasureRecord(
            id=new_id(),
            device=device.key,
            user=user,
            start_ms=Milliseconds(start_ms),
            end_ms=Milliseconds(end_ms),
            head=Position(0),
            deleted=0,
            asked_on=Milliseconds(now_ms),
        )

        def add(tx: Transaction) -> ErasureRecord:
            known = tx.devices.device(device.key)
            if known is None or known.owner != device.owner:  # deleted or handed over since
                raise DeviceNotFound
            if tx.erasures.open_of(user) >= ERASURES_OF_USER:
                raise TooManyErasures(_TRY_LATER_SECONDS)
            asked = replace(record, head=tx.messages.head())
            tx.erasures.put(asked)
            self._end_exports(tx, device.key, start_ms=asked.start_ms, end_ms=asked.end_ms)
            times: dict[str, Any] = {"startDate": asked.start_ms, "endDate": asked.end_ms}
            note(tx, AuditEvent.MESSAGES_DELETED, f"device {device.id}", now_ms=now_ms, erasure=asked.id, **times)
            return asked

        asked = await self._database.write(add)
        self._wakeup.set()
        return ShownErasure(asked, device.id)

    async def find(self, caller: Caller, id_: str) -> ShownErasure:
        """One that the caller's user asked for. Raises NotFound, PermissionDenied."""
        record = await self._database.read(lambda tx: tx.erasures.by_id(id_))
        if record is None:
            raise NotFound
        if record.user != caller.user:
            raise PermissionDenied("access to this deletion")
        return await self._shown(record)

    async def latest(self, caller: Caller) -> list[ShownErasure]:
        """The latest ones of the caller's user, newest first."""
        if (user := caller.user) is None:
            raise PermissionDenied("a user's token")
        records = await self._database.read(lambda tx: tx.erasures.of_user(user, limit=ERASURES_SHOWN))
        return [await self._shown(record) for record in records]

    async def _shown(self, record: ErasureRecord) -> ShownErasure:
        try:
            return ShownErasure(record, (await self._devices.get(record.device)).id)
        except DeviceNotFound:
            return ShownErasure(record, "")

    def statistics(self) -> ErasureStatistics:
        return ErasureStatistics(self._finished, self._messages)

    # The worker

    async def _oldest(self) -> list[tuple[UserKey | None, ErasureRecord]]:
        """The oldest erasure of each user. Raises StoreError."""
        if self._clock.may_delete():
            before_ms = self._clock.now_ms() - ERASURES_KEPT_DAYS * _DAY_MS
            await self._database.write_own(self._lease, lambda tx: tx.erasures.forget_ended(before_ms))
        return [(one.user, one) for one in await self._database.read(lambda tx: tx.erasures.first_of_each_user())]

    @asynccontextmanager
    async def _turn(self, user: UserKey | None) -> AsyncIterator[None]:
        async with self._steps.of(user):
            yield
        await trio.sleep(_PAUSE_SECONDS)

    async def _work(self, user: UserKey | None, record: ErasureRecord) -> None:
        set_actor("", payer=f"erasures of {user}")  # its reads take the turns of one user
        turn = partial(self._turn, user)
        is_left = True
        while is_left:  # of more than the call has ended
            async with turn():
                is_left = not await self._database.write_own(self._lease, partial(self._end_some_exports, record))
        is_left = True
        while is_left:
            async with turn():
                is_left = not await self._delete_some(record)
        is_left = True
        while is_left:
            async with turn():
                is_left = await self._database.write_own(self._lease, partial(_delete_beside, record))
        await self._recounts.recount(Erased(record.device, record.start_ms, record.end_ms, record.head), turn)
        is_left = True
        while is_left:
            async with turn():
                work = partial(self._end, record.id, self._clock.now_ms())
                is_left = not await self._database.write_own(self._lease, work)
                self._finished += not is_left
        self._places.pop(record.id, None)
        _log.info("messages_deleted", erasure=record.id, device=record.device)

    async def _delete_some(self, record: ErasureRecord) -> bool:
        """Delete the next messages; whether there were no more."""
        rows = await self._database.read(partial(_next, record, self._places.get(record.id)))
        if not rows:
            return True
        positions = [position for _, position in rows]
        await self._database.write_own(self._lease, partial(_delete, record.id, positions))
        self._messages += len(positions)
        self._places[record.id] = rows[-1]
        return len(rows) < _STEP_ROWS

    def _end_some_exports(self, record: ErasureRecord, tx: Transaction) -> bool:
        return self._end_exports(tx, record.device, start_ms=record.start_ms, end_ms=record.end_ms)

    def _end(self, id_: str, now_ms: Milliseconds, tx: Transaction) -> bool:
        """End an erasure with its last exports. False: there may be more."""
        if (known := tx.erasures.by_id(id_)) is None:
            return True
        if not self._end_some_exports(known, tx):  # one that was asked for since has some of these messages
            return False
        tx.erasures.put(replace(known, ended_on=now_ms))
        return True


def _next(record: ErasureRecord, place: SortKey | None, tx: Transaction) -> Sequence[SortKey]:
    search = Range(record.start_ms, record.end_ms, limit=_STEP_ROWS, after=place, until=record.head)
    return [(row.ts, row.position) for row in tx.message_searches.page([record.device], search)]


def _delete(id_: str, positions: Sequence[Position], tx: Transaction) -> None:
    known = tx.erasures.by_id(id_)
    if known is not None and known.ended_on is None:
        number = tx.erasures.delete_messages(known.device, positions)
        tx.erasures.put(replace(known, deleted=known.deleted + number))


def _delete_beside(record: ErasureRecord, tx: Transaction) -> bool:
    """Delete some of the failed messages and index entries; whether there may be more."""
    failed = tx.erasures.delete_failed(record, limit=_STEP_ROWS)
    entries = tx.erasures.delete_entries(record, limit=_STEP_ENTRIES)
    return failed == _STEP_ROWS or entries == _STEP_ENTRIES
