"""Readers of the messages of a user's devices (reference 5.9): by application and user, how often and when last.

Reads are counted in memory and written once a minute, as other statistics are. Each node adds its own.
"""

from collections.abc import Collection, Iterable
from typing import Final

import msgspec
import trio
from msgspec.structs import replace

from broker.accounts.tokens import Caller
from broker.clock import Clock
from broker.devices.registry import Device
from broker.loops import Loop, Wakeup
from config.limits import DATA_READERS_SHOWN
from storage.data_readers import ITSELF, NO_APPLICATION, ReaderRecord
from storage.database import Database
from storage.keys import ApplicationKey, UserKey
from storage.sql import StoreError
from storage.transaction import Transaction

_FLUSH_SECONDS: Final = 60.0
_HELD_MOST: Final = 10_000  # then they are written at once
_SAVE_SECONDS: Final = 2.0

_Key = tuple[UserKey, ApplicationKey, UserKey]


class DataReader(msgspec.Struct, frozen=True):
    """`application` and `user` are id and name; None: no application, or it reads for itself."""

    record: ReaderRecord
    application: tuple[str, str] | None
    user: tuple[str, str] | None


class DataReaders:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database, self._clock = database, clock
        self._held: dict[_Key, ReaderRecord] = {}
        self._wakeup = Wakeup()
        self.flush_forever = Loop(
            self.flush, every=_FLUSH_SECONDS, wakeup=self._wakeup, failure="readers_not_written"
        ).run

    def note(self, caller: Caller, devices: Iterable[Device]) -> None:
        """A caller reads messages of these devices: it counts once for each of their owners. A device with its own
        token is no reader."""
        self.note_owners(caller, {device.owner for device in devices})

    def note_owners(self, caller: Caller, owners: Iterable[UserKey]) -> None:
        if caller.device is None:
            self.note_by(caller.application, caller.user, owners)

    def note_by(self, application: ApplicationKey | None, user: UserKey | None, owners: Iterable[UserKey]) -> None:
        """An application reads messages of the devices of these owners for a user, or None: for itself."""
        now_ms = self._clock.now_ms()
        for owner in owners:
            key = (owner, application or NO_APPLICATION, user or ITSELF)
            known = self._held.get(key)
            self._held[key] = (
                ReaderRecord(*key, 1, now_ms, now_ms)
                if known is None
                else replace(known, count=known.count + 1, last_on=now_ms)
            )
        if len(self._held) > _HELD_MOST:
            self._wakeup.set()

    async def of_owner(self, owner: UserKey) -> list[DataReader]:
        """The readers of a user's devices, the latest first. Raises StoreError."""
        await self.flush()

        def read(tx: Transaction) -> list[DataReader]:
            found = []
            for record in tx.data_readers.of_owner(owner, limit=DATA_READERS_SHOWN):
                application = tx.accounts.application(record.application)
                user = tx.accounts.user(record.reader)
                found.append(
                    DataReader(
                        record,
                        None if application is None else (application.id, application.name),
                        None if user is None else (user.id, user.name),
                    )
                )
            return found

        return await self._database.read(read)

    async def flush(self) -> None:
        """Write what is held. Raises StoreError; then it is held as before."""
        if not self._held:
            return
        held, self._held = self._held, {}
        try:
            # Shielded: of a write that nobody waits for, nobody knows whether it was committed.
            with trio.CancelScope(shield=True):
                await self._database.write(lambda tx: _add(tx, held.values()))
        except StoreError:
            for key, one in held.items():
                more = self._held.get(key)
                self._held[key] = (
                    one if more is None else replace(one, count=one.count + more.count, last_on=more.last_on)
                )
            raise

    async def save(self) -> None:
        """Write for a short time, when the daemon stops."""
        with trio.move_on_after(_SAVE_SECONDS):
            await self.flush()


def _add(tx: Transaction, reads: Collection[ReaderRecord]) -> None:
    """Write reads, but for those of users who have left since."""
    users = {one.owner for one in reads} | {one.reader for one in reads}
    there = {*tx.accounts.users_with(users), ITSELF}
    tx.data_readers.add_all(one for one in reads if {one.owner, one.reader} <= there)
