"""The CSV files of approved lists: their parsing, and the worker that adds their rows to the lists.

The worker processes some rows of one upload in each transaction: of each organization the oldest upload, in turns. The
counts are saved in the same transaction, so the worker goes on after the last saved rows, also after a restart.
"""

import re
from collections.abc import Sequence
from functools import partial
from typing import Final

import msgspec
import structlog
import trio
from msgspec.structs import replace

from broker.clock import Clock
from broker.cluster.kinds import publish
from broker.facts import UploadProgressed
from broker.loops import Loop, Wakeup
from config.limits import APPROVED_ROWS_MAX
from storage.database import Database
from storage.records import ApprovedUploadRecord
from storage.transaction import Transaction

#: They take 5 ms of the writer, in which nobody else writes.
_ROWS_AT_ONCE: Final = 200
_STORE_SECONDS: Final = 5.0
_HEADER: Final = "vdid"
_VDID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_LINE_END: Final = re.compile(r"\r\n|\r|\n")

_log = structlog.get_logger(__name__)


class BadList(Exception):
    """The whole file is refused."""


def read_rows(content: bytes) -> list[str]:
    """The vendor ids in a file, without header and empty lines; they are not checked yet. Raises BadList."""
    header, *lines = _LINE_END.split(content.decode("utf-8-sig", "replace"))
    if _unquoted(header) != _HEADER:
        raise BadList("no header")
    rows = [_unquoted(line) for line in lines if line.strip()]
    if len(rows) > APPROVED_ROWS_MAX:
        raise BadList(f"{len(rows)} rows")
    return rows


def _unquoted(line: str) -> str:
    cell = line.strip(" \t")
    return cell[1:-1] if len(cell) > 1 and cell[0] == cell[-1] == '"' else cell


class UploadStatistics(msgspec.Struct, frozen=True):
    """Since the start."""

    files: int
    files_refused: int
    ids_taken: int
    rows_rejected: int


class Uploads:
    """The worker. Call `wake` when there is a new upload."""

    def __init__(self, database: Database, clock: Clock, wakeup: Wakeup | None = None) -> None:
        self._database = database
        self._clock = clock
        self._wakeup = wakeup or Wakeup()
        self._rows: tuple[int, list[str]] = 0, []  # of the upload with this key, whose turn it was last
        self._served: dict[int, int] = {}  # by organization: the turn that it had last
        self._files = self._refused = self._taken = self._rejected = 0
        # After a failure an upload goes on behind the last rows that were saved.
        self.work_forever = Loop(
            self._process_next,
            wakeup=self._wakeup,
            at_once=True,
            failure="approved_list_not_saved",
            retry_seconds=_STORE_SECONDS,
        ).run

    def wake(self) -> None:
        self._wakeup.set()

    async def _process_next(self) -> bool:
        waiting = await self._database.read(lambda tx: tx.approved_lists.next_uploads())
        if waiting:
            organization, oldest = min(waiting, key=lambda one: self._served.get(one[0], 0))
            known = {one for one, _oldest in waiting}
            self._served = {one: turn for one, turn in self._served.items() if one in known}
            self._served[organization] = max(self._served.values(), default=0) + 1
            upload = await self._database.read(lambda tx: tx.approved_lists.upload_by_key(oldest))
            if upload is not None:  # it may be gone with its type
                await self._process_some(upload)
        return bool(waiting)

    async def _process_some(self, upload: ApprovedUploadRecord) -> None:
        try:
            known, rows = self._rows
            if known != upload.key:
                rows = await trio.to_thread.run_sync(read_rows, upload.content or b"")
                self._rows = upload.key, rows
        except BadList as refusal:
            _log.info("approved_list_refused", upload_id=upload.id, reason=str(refusal))
            await self._save(replace(upload, status="Failed"))
            self._refused += 1
            return
        upload = replace(upload, total=len(rows))
        if (done := upload.succeeded + upload.failed) < len(rows):
            some = rows[done : done + _ROWS_AT_ONCE]
            taking = partial(_take, upload, some, self._clock.now_ms())
            upload = await self._database.write(taking)
        if upload.succeeded + upload.failed < len(rows):
            return
        await self._save(replace(upload, status="Completed"))
        self._rows = 0, []
        self._files += 1
        self._taken += upload.succeeded
        self._rejected += upload.failed
        _log.info("approved_list_taken", upload_id=upload.id, succeeded=upload.succeeded, failed=upload.failed)

    def statistics(self) -> UploadStatistics:
        return UploadStatistics(self._files, self._refused, self._taken, self._rejected)

    async def _save(self, upload: ApprovedUploadRecord) -> None:
        await self._database.write(partial(_saved, upload))


def _take(upload: ApprovedUploadRecord, rows: Sequence[str], now_ms: int, tx: Transaction) -> ApprovedUploadRecord:
    """Add the next rows to the list; returns the upload with its new counts."""
    rejected = []
    added = tx.approved_lists.add_entries(upload.device_type, filter(_VDID.fullmatch, rows), now_ms=now_ms)
    for number, vdid in enumerate(rows, upload.succeeded + upload.failed + 1):
        if _VDID.fullmatch(vdid) is None:
            rejected.append((number, "Invalid vdid"))
        elif vdid in added:
            added.remove(vdid)  # the same one in a later row is a duplicate
        else:
            rejected.append((number, "Duplicate vdid"))
    tx.approved_lists.add_rejections(upload.key, rejected)
    upload = replace(
        upload,
        succeeded=upload.succeeded + len(rows) - len(rejected),
        failed=upload.failed + len(rejected),
    )
    _saved(upload, tx)
    return upload


def _saved(upload: ApprovedUploadRecord, tx: Transaction) -> None:
    tx.approved_lists.save_upload(upload)
    publish(tx, UploadProgressed(upload.id, upload.device_type))
