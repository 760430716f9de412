"""Wakes a worker that one of several nodes runs, on whatever node something has come for it."""

from typing import TYPE_CHECKING

from broker.cluster.kinds import WORK_WAITS
from broker.cluster.leases import LeaseName
from broker.loops import Wakeup

if TYPE_CHECKING:
    from broker.core import Core


class Knock(Wakeup):
    """A `Wakeup` that the node hears which has the lease."""

    def __init__(self, core: "Core", lease: LeaseName, worker: str) -> None:
        """`worker` names it among all workers."""
        super().__init__()
        self._database, self._worker = core.database, worker
        self._lease = None if core.peers is None else core.leases.of(lease)
        core.news.listen_elsewhere(WORK_WAITS, self._waits)

    def set(self) -> None:
        super().set()
        if self._lease is not None and not self._lease.is_held:
            self._database.write_nowait(lambda tx: tx.tell(WORK_WAITS, self._worker))

    def _waits(self, worker: str, _content: None) -> None:
        if worker == self._worker:
            super().set()
