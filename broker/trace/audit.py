"""The audit log: who changed what, when and from where, and who was refused (reference 28.2).

An entry about a change is written in the transaction of that change (`note`). An event without a transaction waits in
a bounded queue for the worker. Entries end by age and by number; entries caused by strangers get a quarter of the
number, and one actor has no more when there are too many, so that a flood of them cannot push out what others did.
"""

from collections import deque
from typing import Any, Final

import msgspec
import trio

from broker.clock import Clock
from broker.loops import Loop, Wakeup
from broker.trace.events import AuditEvent as AuditEvent  # noqa: PLC0414 - also named here
from broker.trace.origin import current_origin
from config.settings import Audit as AuditSettings
from storage.database import Database
from storage.records import AuditFilter, AuditRecord
from storage.sql import StoreError
from storage.transaction import Transaction

SWEEP_SECONDS: Final = 60.0
_DAY_MS: Final = 86_400_000
_WAITING: Final = 1_000
_STEP_ROWS: Final = 500
_RETRY_SECONDS: Final = 5.0


def entry_of(
    event: AuditEvent,
    object_: str = "",
    *,
    now_ms: int,
    actor: str = "",
    outcome: str = "done",
    of_stranger: bool = False,
    **details: Any,
) -> AuditRecord:
    """An entry by the origin of this task. Details that are None are left out.

    `actor` counts where the origin has none: who has proven in this very transaction who it is.
    """
    origin = current_origin()
    if origin.application:
        details.setdefault("application", origin.application)
    known = {name: value for name, value in details.items() if value is not None}
    return AuditRecord(
        now_ms, event, origin.actor or actor, origin.address, object_, outcome, known, of_stranger=of_stranger
    )


def note(
    tx: Transaction, event: AuditEvent, object_: str = "", *, now_ms: int, actor: str = "", **details: Any
) -> None:
    """Add an entry about a change to the transaction of the change, for `Database.write`."""
    tx.audit.add(entry_of(event, object_, now_ms=now_ms, actor=actor, **details))


class AuditStatistics(msgspec.Struct, frozen=True):
    waiting: int
    lost: int  # entries that found the queue full
    removed: int


class AuditLog:
    """The worker that writes queued entries and removes old ones; and the reading side."""

    def __init__(self, database: Database, clock: Clock, settings: AuditSettings) -> None:
        self._database = database
        self._clock = clock
        self._settings = settings
        self._waiting: deque[AuditRecord] = deque()
        self._wakeup = Wakeup()
        self._lost = self._removed = 0

    def put(self, entry: AuditRecord) -> None:
        """Queue an entry about something that no transaction belongs to."""
        if len(self._waiting) >= _WAITING:
            self._lost += 1
            return
        self._waiting.append(entry)
        self._wakeup.set()

    async def write(self, entry: AuditRecord) -> None:
        """Add an entry, and return when it is durable. Raises StoreError."""
        await self._database.write(lambda tx: tx.audit.add(entry))

    async def find(self, wanted: AuditFilter) -> list[AuditRecord]:
        """The latest entries that match, oldest first."""
        await self.flush()
        return await self._database.read(lambda tx: tx.audit.find(wanted))

    async def write_forever(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                Loop(
                    self.flush,
                    wakeup=self._wakeup,
                    failure="audit_not_written",
                    retry_seconds=_RETRY_SECONDS,
                ).run
            )
            nursery.start_soon(
                Loop(self.sweep, every=SWEEP_SECONDS, at_once=True, failure="audit_not_swept", deletes=True).run
            )
            task_status.started()

    async def flush(self) -> None:
        """Write what waits. Raises StoreError; then it still waits."""
        if not self._waiting:
            return
        entries = tuple(self._waiting)
        self._waiting.clear()

        try:
            await self._database.write(lambda tx: tx.audit.add_all(entries))  # also if this task is cancelled
        except StoreError:
            self._waiting.extendleft(reversed(entries))
            raise

    async def sweep(self) -> None:
        """Remove what is too old or too much, in small steps."""
        if not self._clock.may_delete():
            return
        keep = self._settings.keep_entries
        before_ms = self._clock.now_ms() - self._settings.keep_days * _DAY_MS
        while keys := await self._database.read(
            lambda tx: (
                tx.audit.older_than(before_ms, limit=_STEP_ROWS)
                or tx.audit.surplus(keep // 4, limit=_STEP_ROWS, of_stranger=True)
                or tx.audit.surplus_keys(keep, share=keep // 4, limit=_STEP_ROWS)
            )
        ):
            await self._database.write(lambda tx: tx.audit.remove(keys))
            self._removed += len(keys)

    def statistics(self) -> AuditStatistics:
        return AuditStatistics(len(self._waiting), self._lost, self._removed)
