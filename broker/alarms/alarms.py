"""Lists alarms, acknowledges and clears them (reference 12.12)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from broker.accounts.issuance import Issuance
from broker.alarms.changes import acknowledge, clear_keys
from broker.clock import Clock
from broker.errors import Conflict, NotFound
from broker.trace.audit import AuditEvent, note
from storage.alarms import AlarmFilter, AlarmRecord
from storage.database import Database
from storage.records import UserRecord
from storage.transaction import Transaction

CLEARED: Final = "The alarm is cleared"


@dataclass(slots=True, eq=False)
class AlarmBook:
    """The caller checks permissions. `by` is an actor, such as `user …`."""

    _database: Database
    _clock: Clock

    async def find(self, alarm_id: str) -> AlarmRecord:
        """Raises NotFound."""
        found = await self._database.read(lambda tx: tx.alarms.by_id(alarm_id))
        if found is None:
            raise NotFound
        return found

    async def page(self, wanted: AlarmFilter, *, offset: int, count: int) -> tuple[Sequence[AlarmRecord], int]:
        """The alarms that were raised last come first; and how many there are."""
        return await self._database.read(lambda tx: tx.alarms.find(wanted, offset=offset, limit=count))

    async def acknowledge(self, record: AlarmRecord, *, by: str) -> AlarmRecord:
        """Somebody knows of it: nobody is told any more. Again it changes nothing. Raises NotFound, Conflict."""
        now_ms = self._clock.now_ms()

        def work(tx: Transaction) -> AlarmRecord:
            if acknowledge(tx, record.key, at_ms=now_ms, by=by):
                note(tx, AuditEvent.ALARM_ACKNOWLEDGED, f"alarm {record.id}", now_ms=now_ms, owner=record.owner_id)
            known = tx.alarms.by_key(record.key)
            if known is None:
                raise NotFound
            if known.acknowledged_on is None:
                raise Conflict(CLEARED)
            return known

        return await self._database.write(work)

    async def clear_by_hand(self, record: AlarmRecord, *, by: str) -> AlarmRecord:
        """Clear it by hand: the next trigger raises another one. Again it changes nothing. Raises NotFound."""
        now_ms = self._clock.now_ms()

        def work(tx: Transaction) -> AlarmRecord:
            if clear_keys(tx, [record.key], at_ms=now_ms, by=by):
                note(tx, AuditEvent.ALARM_CLEARED, f"alarm {record.id}", now_ms=now_ms, owner=record.owner_id)
            known = tx.alarms.by_key(record.key)
            if known is None:
                raise NotFound
            return known

        return await self._database.write(work)

    def end_all_of(self, issuance: Issuance, user: UserRecord) -> Sequence[str]:
        """Remove a user's alarms, and how the user is told of them, in the caller's transaction
        (`broker/accounts/claims.py: Ender`). They have no names of their own: their rules do."""
        issuance.tx.alarms.remove_of(user.key)
        issuance.tx.alarm_telling.remove_of(user.key)
        return ()
