"""Wakes a worker that one of several nodes runs, on whatever node something has come for it."""

from broker.cluster.kinds import WORK_WAITS
from broker.cluster.leases import Lease
from broker.cluster.news import News
from broker.loops import Wakeup
from storage.database import Database


class Knock(Wakeup):
    """A `Wakeup` that the node hears which has the lease."""

    def __init__(self, database: Database, news: News, worker: str, lease: Lease | None) -> None:
        """`worker` names it among all workers; `lease` is that of the worker; None: no other node serves."""
        super().__init__()
        self._database = database
        self._worker = worker
        self._lease = lease
        news.listen_elsewhere(WORK_WAITS, self._waits)

    def set(self) -> None:
        super().set()
        if self._lease is not None and not self._lease.is_held:
            self._database.write_nowait(lambda tx: tx.tell(WORK_WAITS, self._worker))

    def _waits(self, worker: str, _content: None) -> None:
        if worker == self._worker:
            super().set()
