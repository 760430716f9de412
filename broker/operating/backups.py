"""Backups that the operator begins on a page: one at a time, in the background, with their progress.

Of several nodes, the one that is asked makes it, into its folder; each of them says how it is.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
import structlog
import trio

from broker.cluster.facts import FactLog
from broker.cluster.kinds import publish
from broker.core import Core
from broker.errors import Conflict
from broker.facts import BackupProgressed
from broker.operating.port import BackupFailedError, Machine
from broker.trace.audit import AuditEvent, entry_of
from broker.trace.origin import Origin, current_origin, enter
from storage.operator_backups import OperatorBackupRecord
from storage.outages import Outage
from storage.sql import StoreError
from storage.transaction import Transaction

UNDER_WAY: Final = "A backup is under way"
_STORE_SECONDS: Final = 1.0
_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class BackupProgress:
    """The latest backup since the start of the daemon. `done` and `total` are bytes, `total` 0 before it is known."""

    status: str  # running | done | failed
    started_on: int
    done: int = 0
    total: int = 0
    ended_on: int | None = None
    file: str = ""
    problem: str = ""
    node: str = ""  # of several nodes


class KeptBackup(msgspec.Struct, frozen=True):
    name: str
    size: int
    made_on: int
    node: str = ""  # of several nodes


class Backups:
    def __init__(self, core: Core, folder: Path, keep: int) -> None:
        self._clock = core.clock
        self._router = core.router
        self._audit = core.audit
        self._database = core.database
        self._peers = core.peers
        self.folder: Final = folder
        self._keep = keep
        self._latest: BackupProgress | None = None
        self._outage = Outage("backup_not_told")
        self._wanted: tuple[Machine, Origin] | None = None
        self._wakeup = trio.Event()

    async def begin(self, machine: Machine) -> BackupProgress:
        """Begin a backup. Raises Conflict; StoreError, of several nodes."""
        progress = BackupProgress("running", self._clock.now_ms())
        await self._claim(machine, progress)
        self._latest = progress
        self._wanted = machine, current_origin()
        self._wakeup.set()
        self._tell()
        return progress

    async def _claim(self, machine: Machine, progress: BackupProgress) -> None:
        """Raises Conflict: one is under way."""
        if self._latest is not None and self._latest.status == "running":
            raise Conflict(UNDER_WAY)
        if (peers := self._peers) is not None:  # nothing else begins one here until the row says that it has ended
            progress.node = peers.node
            record = _record(peers, progress, await self._own(machine))
            await self._database.write(partial(_begin, record))

    async def latest(self) -> BackupProgress | None:
        """The latest one since the start; of several nodes, the latest one of all. Raises StoreError."""
        if self._peers is None:
            return self._latest
        records, living = await self._database.read(_records)
        if not records:
            return None
        one = records[0]
        found = BackupProgress(
            one.status, one.started_on, one.done, one.total, one.ended_on, one.file, one.problem, one.node
        )
        if found.status == "running" and one.instance not in living:
            found.status, found.problem = "failed", "the node that made it has ended"
        return found

    async def kept(self, machine: Machine) -> Sequence[KeptBackup]:
        """The newest first; of several nodes, also what the folder of each had after its latest backup.

        Raises StoreError.
        """
        own = await self._own(machine)
        if (peers := self._peers) is None:
            return own
        records, _living = await self._database.read(_records)
        others = [one for record in records if record.node != peers.node for one in _decode(record.kept)]
        return sorted([*own, *others], key=lambda one: one.made_on, reverse=True)

    async def _own(self, machine: Machine) -> list[KeptBackup]:
        node = "" if self._peers is None else self._peers.node
        return [KeptBackup(*one, node) for one in await machine.backups(self.folder)]

    async def work_forever(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        while True:
            await self._wakeup.wait()
            self._wakeup = trio.Event()
            if self._wanted is not None and self._latest is not None:
                machine, origin = self._wanted
                self._wanted = None
                enter(origin)
                async with trio.open_nursery() as nursery:
                    if self._peers is not None:
                        nursery.start_soon(self._store_forever, self._peers, machine, self._latest)
                    await self._make(machine, self._latest)
                    nursery.cancel_scope.cancel()
                if self._peers is not None:
                    await self._store(self._peers, machine, self._latest)
                enter(Origin())

    async def _store_forever(self, peers: FactLog, machine: Machine, progress: BackupProgress) -> None:
        while True:
            await trio.sleep(_STORE_SECONDS)
            await self._store(peers, machine, progress)

    async def _store(self, peers: FactLog, machine: Machine, progress: BackupProgress) -> None:
        """Have the other nodes know how it is."""
        while True:
            record = _record(peers, progress, await self._own(machine))
            try:
                await self._database.write(partial(_put, record))
            except StoreError as error:
                self._outage.failed(error)
                await trio.sleep(_STORE_SECONDS)
            else:
                self._outage.succeeded()
                return

    async def _make(self, machine: Machine, progress: BackupProgress) -> None:
        loop = trio.lowlevel.current_trio_token()

        def copied(more: int, total: int) -> None:  # in the thread that copies
            progress.done, progress.total = progress.done + more, total
            with suppress(trio.RunFinishedError):  # the thread may outlive the loop by one piece
                loop.run_sync_soon(self._tell, idempotent=True)

        try:
            made = await machine.back_up(self.folder, keep=self._keep, copied=copied)
        except BackupFailedError as failure:
            progress.status, progress.problem = "failed", str(failure)
            _log.warning("backup_failed", reason=str(failure))
        except Exception:  # noqa: BLE001 - whatever it is, the next backup can be asked for
            progress.status, progress.problem = "failed", "an internal error: the daemon's log says more"
            _log.exception("backup_failed")
        else:
            progress.status, progress.file = "done", made.name
        progress.ended_on = now_ms = self._clock.now_ms()
        outcome = "done" if progress.status == "done" else "failed"
        about = f"file {progress.file}" if progress.file else ""
        self._audit.put(entry_of(AuditEvent.COMMAND, about, now_ms=now_ms, outcome=outcome, command="backup"))
        self._tell()

    def _tell(self) -> None:
        self._router.publish(BackupProgressed())


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(list[KeptBackup]).decode


def _record(peers: FactLog, one: BackupProgress, kept: Sequence[KeptBackup]) -> OperatorBackupRecord:
    ended_on, text = one.ended_on, _encode(kept).decode()
    about = one.status, one.started_on, ended_on, one.done, one.total, one.file, one.problem
    return OperatorBackupRecord(peers.node, peers.instance, *about, text)


def _records(tx: Transaction) -> tuple[list[OperatorBackupRecord], set[str]]:
    """The backups, and the processes that serve."""
    return tx.operator_backups.all(), {one.instance for one in tx.leases.nodes()}


def _begin(record: OperatorBackupRecord, tx: Transaction) -> None:
    records, living = _records(tx)
    if any(one.status == "running" and one.instance in living for one in records):
        raise Conflict(UNDER_WAY)
    _put(record, tx)


def _put(record: OperatorBackupRecord, tx: Transaction) -> None:
    tx.operator_backups.put(record)
    publish(tx, BackupProgressed())
