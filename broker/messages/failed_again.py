"""Failed messages of the last days are read again when their type uses a new version of its Manifest (reference 9.9).

A failed message that fits now becomes a message with the time that it had. In one commit it is stored and no failed one
any more, so each is stored once, also after a kill: the reading goes on behind its position.
"""

from typing import Final

import msgspec
import structlog

from broker.clock import Clock
from broker.devices.registry import Device, Devices
from broker.errors import DeviceNotFound
from broker.facts import DeviceTypeChanged, FactPhase, Router
from broker.loops import Loop, Wakeup
from broker.messages.batches import Turn
from broker.messages.ingest import Ingest, Normalized
from config.limits import FAILED_DAYS
from storage.database import Database
from storage.failed_readings import FailedReadingRecord
from storage.keys import DeviceKey, DeviceTypeKey, Position
from storage.leases import Holder
from storage.records import FailedMessageRow
from storage.sql import StoreError
from storage.transaction import Transaction

_DAY_MS: Final = 86_400_000
#: Failed messages of a step, which is one commit: some ms of the loop, in turns.
_ROWS: Final = 200
_HEX: Final = "hex:"
_log = structlog.get_logger(__name__)


class FailedAgainStatistics(msgspec.Struct, frozen=True):
    """Since the start."""

    looked: int
    fit: int


class FailedAgain:
    def __init__(
        self, database: Database, lease: Holder, clock: Clock, router: Router, devices: Devices, ingest: Ingest
    ) -> None:
        self._database = database
        self._lease = lease
        self._clock = clock
        self._devices = devices
        self._ingest = ingest
        self._looked = self._fit = 0
        #: Up to where rows were stored, of a reading that could not note it.
        self._stored: dict[DeviceTypeKey, tuple[FailedReadingRecord, Position]] = {}
        wakeup = Wakeup()
        router.subscribe(DeviceTypeChanged, lambda _fact: wakeup.set(), FactPhase.EFFECT)
        self.read_forever = Loop(
            self._read, wakeup=wakeup, failure="failed_messages_not_read", at_once=True, retry_seconds=5
        ).run

    async def _read(self) -> bool:
        """One step of each reading that goes on. Returns whether there are any."""
        # As a write: behind the failed messages of the version before, which are in the open group.
        readings = await self._database.write(lambda tx: tx.failed_readings.open())
        for reading in readings:
            await self._step(reading)
        return bool(readings)

    async def _step(self, reading: FailedReadingRecord) -> None:
        before, done = self._stored.get(reading.device_type, (reading, Position(0)))
        after = max(reading.position, done) if before.began_on == reading.began_on else reading.position
        rows = await self._database.read(lambda tx: tx.failed_readings.page(after, limit=_ROWS))
        since = self._clock.now_ms() - FAILED_DAYS * _DAY_MS
        of_type = [
            row for row, type_ in rows if type_ == reading.device_type and row.ts is not None and row.cts >= since
        ]
        fitting = await self._fitting(of_type)
        while not self._ingest.has_room:
            await self._ingest.wait_room()
        # No task switch from here to the write: the rows are in its transaction.
        group = self._database.open_group
        fit = [row.position for row, device, ahead in fitting if self._submitted(row, device, ahead)]

        def work(tx: Transaction) -> None:
            if rows:
                tx.failed_readings.go_on(reading, rows[-1][0].position, looked=len(of_type), fit=fit)
            else:
                tx.failed_readings.end(reading, now_ms=self._clock.now_ms())

        try:
            await self._database.write_own(self._lease, work, with_rows=bool(fit))
        except StoreError:
            if fit and group.error is None:  # the rows are stored all the same: not once more
                self._stored[reading.device_type] = reading, rows[-1][0].position
            raise
        self._looked += len(of_type)
        self._fit += len(fit)
        if not rows:
            self._stored.pop(reading.device_type, None)
            if reading.looked:
                _log.info("failed_messages_read", version=reading.version, looked=reading.looked, fit=reading.fit)

    async def _fitting(self, rows: list[FailedMessageRow]) -> list[tuple[FailedMessageRow, Device, Normalized]]:
        found, turn = [], Turn()
        for row in rows:
            device = await self._device(row.device)
            ahead = None if device is None else self._ingest.normalized(device, failed_payload(row.payload))
            if device is not None and ahead is not None and ahead.data is not None:
                found.append((row, device, ahead))
            await turn.pause()
        return found

    async def _device(self, key: DeviceKey) -> Device | None:
        try:
            return await self._devices.get(key)
        except DeviceNotFound:
            return None

    def _submitted(self, row: FailedMessageRow, device: Device, ahead: Normalized) -> bool:
        """False: the device was disabled or deleted since, or has another version, with which the reading begins
        again."""
        if row.ts is None or not device.enabled or device.manifest is not ahead.version:
            return False
        self._ingest.submit_again(device, row.ts, ahead)
        return True

    def statistics(self) -> FailedAgainStatistics:
        return FailedAgainStatistics(self._looked, self._fit)


def failed_payload(kept: str) -> bytes:
    """The bytes of a failed message; no text, they are kept as `hex:` and their digits."""
    if kept.startswith(_HEX):
        try:
            payload = bytes.fromhex(kept.removeprefix(_HEX))
            payload.decode()
        except UnicodeDecodeError:
            return payload
        except ValueError:
            pass
    return kept.encode()
