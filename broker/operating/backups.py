"""Backups that the operator begins on a page: one at a time, in the background, with their progress."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import structlog
import trio

from broker.clock import Clock
from broker.errors import Conflict
from broker.facts import BackupProgressed, Router
from broker.operating.port import BackupFailedError, Machine
from broker.trace.audit import AuditEvent, AuditLog, entry_of
from broker.trace.origin import Origin, current_origin, enter

UNDER_WAY: Final = "A backup is under way"
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


class KeptBackup(msgspec.Struct, frozen=True):
    name: str
    size: int
    made_on: int


class Backups:
    def __init__(self, clock: Clock, router: Router, audit: AuditLog, folder: Path, keep: int) -> None:
        self._clock = clock
        self._router = router
        self._audit = audit
        self.folder: Final = folder
        self._keep = keep
        self.latest: BackupProgress | None = None
        self._wanted: tuple[Machine, Origin] | None = None
        self._wakeup = trio.Event()

    def begin(self, machine: Machine) -> BackupProgress:
        """Begin a backup. Raises Conflict."""
        if self.latest is not None and self.latest.status == "running":
            raise Conflict(UNDER_WAY)
        self.latest = BackupProgress("running", self._clock.now_ms())
        self._wanted = machine, current_origin()
        self._wakeup.set()
        self._tell()
        return self.latest

    async def kept(self, machine: Machine) -> Sequence[KeptBackup]:
        """The newest first."""
        return [KeptBackup(*one) for one in await machine.backups(self.folder)]

    async def work_forever(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        while True:
            await self._wakeup.wait()
            self._wakeup = trio.Event()
            if self._wanted is not None and self.latest is not None:
                machine, origin = self._wanted
                self._wanted = None
                enter(origin)
                await self._make(machine, self.latest)
                enter(Origin())

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
