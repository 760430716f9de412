"""Stores what connectors bring through Ingest, as all other messages, and with it what is stored (`progress`)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

import structlog

from broker.clock import Clock
from broker.connectors.hooks import Record
from broker.connectors.links import ConnectorLink
from broker.connectors.progress import SeriesProgress, read_progress, reading_time, write_progress
from broker.connectors.sub_devices import SubDevices
from broker.devices.registry import Device, Devices
from broker.errors import (
    DeviceNotFound,
    DomainError,
    StorageUnavailable,
    TryLater,
)
from broker.limits.refusals import PlanLimitsNotSet
from broker.messages.ingest import Ingest
from config.limits import MAX_DATA_BYTES
from storage.database import Database
from storage.sql import StoreError

_AT_ONCE: Final = 100  # records that are submitted before other tasks get their turn
_log = structlog.get_logger(__name__)


@dataclass(eq=False)
class Intake:
    _database: Database
    _clock: Clock
    _devices: Devices
    _sub_devices: SubDevices
    _ingest: Ingest
    stored: int = field(default=0, init=False)
    refused: int = field(default=0, init=False)

    async def progress(self, link: ConnectorLink) -> SeriesProgress:
        """The stored progress of this link's readings. Raises StoreError."""
        return await self._database.read(lambda tx: read_progress(tx, link.record, link.contents))

    async def store(self, link: ConnectorLink, records: Sequence[Record], *, asked_on: int) -> None:
        """Store a hook's records for a linked device; they are durable on return. The caller holds `standing`.

        Readings that are stored already are left out. Refused records are kept among the failed messages of the device.
        A quota that is used up ends the call: what is left is fetched again. `asked_on` is in ms: the records are what
        the third party had then.

        Raises StorageUnavailable.
        """
        if not records:
            return
        try:
            await self._store(link, records, asked_on)
        except DeviceNotFound:  # deleted since
            return
        except StoreError as error:
            raise StorageUnavailable.of(error) from error

    async def _store(self, link: ConnectorLink, records: Sequence[Record], asked_on: int) -> None:
        holder = await self._devices.get(link.record.device)
        has_series = any(record.series for record in records)
        progress = await self.progress(link) if has_series else SeriesProgress({})
        new = [record for record in records if not progress.is_known(record)]
        if not new:
            return
        wanted = {record.sub_device for record in new if record.sub_device is not None}
        targets: Mapping[str | None, Device] = {None: holder} | await self._sub_devices.of(holder, wanted)
        batches = _batches(new)
        answer = _Answer(self._ingest, targets, progress)
        for batch in batches:
            await self._ingest.wait_room()
            is_last = not answer.take(batch, asked_on=asked_on) or batch is batches[-1]
            if is_last:
                answer.keep_failed(holder)
            # No task switch since the first record of the batch, so what is stored is in the transaction of the batch.
            await self._written(link, answer, has_series=has_series)
            if is_last:
                break
        self.stored += answer.stored
        self.refused += len(answer.failed)

    async def _written(self, link: ConnectorLink, answer: "_Answer", *, has_series: bool) -> None:
        if has_series:
            now_ms, text = self._clock.now_ms(), answer.progress.text()
            await self._database.write(lambda tx: write_progress(tx, link.record, text, now_ms=now_ms))
        else:
            await self._ingest.wait_committed()


class _Answer:
    """The records of one answer on their way into Ingest."""

    def __init__(self, ingest: Ingest, targets: Mapping[str | None, Device], progress: SeriesProgress) -> None:
        self._ingest = ingest
        self._targets = targets
        self._is_whole = True
        self.progress = progress
        self.failed: list[tuple[Record, str]] = []
        self.stored = 0

    def take(self, batch: Sequence[Record], *, asked_on: int) -> bool:
        """Submit records in the order of their time; False when a quota is used up, and what is left must wait."""
        for ts, records in groupby(batch, key=reading_time):
            stored_series = set()
            for record in records:
                try:
                    if self._submit(record):
                        self.progress.note_stored(record)
                        stored_series.add(record.series)
                except (TryLater, PlanLimitsNotSet) as error:
                    _log.info("connector_records_wait", reason=str(error))
                    self._is_whole = False
                    return False
                except DomainError as error:
                    self.failed.append((record, str(error)))
            for series in stored_series:
                # A device whose clock is ahead must not hide from the next fetch what others measure from now on.
                if ts is not None:
                    self.progress.note_complete(series, min(ts, asked_on - 1))
        return True

    def _submit(self, record: Record) -> bool:
        """Whether the record was submitted. Raises as Ingest."""
        device = self._targets.get(record.sub_device)
        problem = record.problem or ("too many sub-devices" if device is None else "")
        if problem or device is None:
            self.failed.append((record, problem))
            return False
        if self.progress.is_known(record):  # the same reading twice in one answer
            return False
        if record.is_action:
            self._ingest.submit_action(device, device, record.data, record.ts, is_sent=False)
        else:
            self._ingest.submit(device, record.data, record.ts)
        self.stored += 1
        return True

    def keep_failed(self, holder: Device) -> None:
        """Keep what failed among the failed messages, except what failed in the last answer of the series, too."""
        by_series: dict[str, list[Record]] = {}
        for record, _ in self.failed:
            by_series.setdefault(record.series, []).append(record)
        new = {
            id(record)
            for series, failed in by_series.items()
            for record in self.progress.note_failed(series, failed, is_whole=self._is_whole)
        }
        for record, reason in self.failed:
            if id(record) in new:
                device = self._targets.get(record.sub_device) or holder
                _log.info("connector_record_refused", device=device.id, reason=reason)
                self._ingest.keep_failed(device, record.data.decode()[:MAX_DATA_BYTES].encode(), reason)


def _batches(records: Sequence[Record]) -> list[list[Record]]:
    """The records by time in batches; records of one time are in one batch. There is at least one batch.

    What is stored after a crash is then all that was offered up to some time.
    """
    batches: list[list[Record]] = [[]]
    by_time = sorted(records, key=lambda record: reading_time(record) or 0)
    for _, same in groupby(by_time, key=reading_time):
        if len(batches[-1]) >= _AT_ONCE:
            batches.append([])
        batches[-1].extend(same)
    return batches
