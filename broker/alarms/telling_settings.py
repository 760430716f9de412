"""How users want to be told of alarms, and what was wrong with the last notice (reference 12.13)."""

from typing import Final

import msgspec
from cryptography.fernet import InvalidToken

from broker.alarms.ways import AlarmWays, Telling, check_telling
from broker.clock import Clock
from broker.secrets import Vault
from broker.trace.audit import AuditEvent, note
from storage.alarm_telling import TellingRecord
from storage.database import Database
from storage.keys import Milliseconds, UserKey
from storage.records import UserRecord
from storage.transaction import Transaction

_decode: Final = msgspec.json.Decoder(Telling).decode


class ShownTelling(msgspec.Struct, frozen=True):
    telling: Telling
    problem: str
    problem_on: Milliseconds | None


class TellingSettings:
    """`schemes`: the ways of Apprise that users may choose."""

    def __init__(
        self, database: Database, clock: Clock, vault: Vault, schemes: tuple[str, ...], ways: AlarmWays | None
    ) -> None:
        self._database = database
        self._clock = clock
        self._vault = vault
        self.schemes = schemes if ways is not None and ways.has_apprise else ()

    async def show(self, user: UserKey) -> ShownTelling:
        record = await self._database.read(lambda tx: tx.alarm_telling.of(user))
        if record is None:
            return ShownTelling(Telling(), "", None)
        return ShownTelling(self.opened(record), record.problem, record.problem_on)

    async def put(self, user: UserRecord, wanted: Telling) -> ShownTelling:
        """Raises ValidationFailed."""
        check_telling(wanted, self.schemes)
        now_ms = self._clock.now_ms()
        sealed = self._vault.seal(msgspec.json.encode(wanted).decode())

        def work(tx: Transaction) -> None:
            tx.alarm_telling.put(TellingRecord(user.key, sealed, now_ms))
            note(tx, AuditEvent.ALARM_TELLING_CHANGED, f"user {user.id}", now_ms=now_ms)

        await self._database.write(work)
        return ShownTelling(wanted, "", None)

    def opened(self, record: TellingRecord | None) -> Telling:
        if record is None:
            return Telling()
        try:
            return _decode(self._vault.open(record.sealed))
        except (InvalidToken, msgspec.DecodeError):  # another key has sealed it
            return Telling()
