"""Where in the log one forward is, in memory and in the store."""

from dataclasses import dataclass

from msgspec.structs import replace

from broker.clock import Clock
from config.settings import Forward
from storage.database import Database
from storage.forwarding import ForwardRecord
from storage.keys import Milliseconds, Position
from storage.leases import Holder
from storage.transaction import Transaction


@dataclass(eq=False)
class LogPosition:
    """A position of its own, as subscriptions have one, but no consumer's: an upstream that is away for long does not
    keep retention from deleting."""

    _entry: Forward
    _database: Database
    _lease: Holder
    _clock: Clock
    _record: ForwardRecord | None = None
    _saved: ForwardRecord | None = None

    @property
    def record(self) -> ForwardRecord:
        """`begin` has read it."""
        if self._record is None:
            raise AssertionError("the position is not read")
        return self._record

    @record.setter
    def record(self, record: ForwardRecord) -> None:
        self._record = record

    @property
    def is_known(self) -> bool:
        return self._record is not None

    @property
    def is_saved(self) -> bool:
        return self._record == self._saved

    async def begin(self) -> None:
        """Read where the last run stopped, or begin. Raises StoreError."""
        entry = self._entry
        if self._record is not None:
            return

        def read(tx: Transaction) -> tuple[ForwardRecord | None, Position]:
            return tx.forwarding.forward(entry.name), tx.messages.head()

        known, head = await self._database.read(read)
        if known is None or known.target != entry.to:
            mark = 0 if entry.begin == "start" else head
            known = ForwardRecord(
                entry.name, entry.to, None, mark, (), "", None, None, Milliseconds(self._clock.now_ms())
            )
        self._record = known
        await self._save(known)

    def forget(self) -> None:
        self._record = self._saved = None

    async def save(self) -> None:
        """Raises StoreError."""
        if self._record is not None and self._record != self._saved:
            await self._save(self._record)

    async def _save(self, record: ForwardRecord) -> None:
        now_ms = Milliseconds(self._clock.now_ms())

        def work(tx: Transaction) -> None:
            known = tx.forwarding.forward(record.name)
            # Actions are taken in commits of their own.
            actions = record.actions_after if known is None or known.target != record.target else known.actions_after
            tx.forwarding.put_forward(replace(record, actions_after=actions, changed_on=now_ms))

        await self._database.write_own(self._lease, work)
        self._saved = record
