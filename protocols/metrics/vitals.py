"""State of the listeners for monitoring, and whether the daemon is ready."""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import urlsplit

import trio

from broker.core import Core
from config.settings import Settings
from protocols.operation.systemd import write_probe
from storage.durations import Durations
from storage.sql import StoreError

#: A commit that is older says nothing about the store.
FRESH_SECONDS: Final = 60.0
_WRITE_SECONDS: Final = 5.0
_RETRY_SECONDS: Final = 5.0


class Traffic:
    """The HTTP requests of one listener: how long each waited for its answer, and the status of the answer."""

    __slots__ = ("durations", "statuses")

    def __init__(self) -> None:
        self.durations = Durations()
        self.statuses: Counter[int] = Counter()

    def answered(self, seconds: float, status: int) -> None:
        self.durations.observe(seconds)
        self.statuses[status] += 1


class Vitals:
    """One for the daemon; its listeners fill it."""

    def __init__(self, core: Core) -> None:
        self.core = core
        #: The statistics of listeners, by the names of `trunkline statistics`.
        self.counters: dict[str, Callable[[], object]] = {}
        self.traffic: dict[str, Traffic] = {}  # by listener
        #: Networks besides this machine that may read /metrics.
        self.allowed = core.settings.metrics.networks
        self.hosts = _hosts(core.settings)  # of this machine
        self._closed: Mapping[str, str] | None = None
        self._probing = trio.Lock()
        self._refusal, self._refused_at = "", float("-inf")

    def renew(self, settings: Settings) -> None:
        """Replace the settings."""
        self.allowed = settings.metrics.networks
        self.hosts = _hosts(settings)

    def traffic_of(self, listener: str) -> Traffic:
        return self.traffic.setdefault(listener, Traffic())

    def listens(self, closed: Mapping[str, str]) -> None:
        """Every listener was opened, except for those in `closed`, each with the reason."""
        self._closed = closed

    @property
    def closed(self) -> Mapping[str, str]:
        """The listeners that could not be opened, each with the reason."""
        return self._closed or {}

    async def problem(self) -> str:
        """Why the daemon is not ready; empty when it is (reference 27.11)."""
        if self.core.life.stopping.is_set():
            return "the daemon stops"
        if self.core.life.draining.is_set():
            return "draining"
        if self._closed is None:
            return "the daemon starts: not every listener is open"
        for listener, reason in self._closed.items():
            return f"{listener} does not listen: {reason}"
        return await self._store_problem()

    async def _store_problem(self) -> str:
        """Look at the latest commit. When it is old or has failed, write: at most one write at a time."""
        async with self._probing:
            database, now = self.core.database, trio.current_time()
            committed_at = database.committed_at
            if database.last_error is None and committed_at is not None and now - committed_at < FRESH_SECONDS:
                return ""
            if now - self._refused_at < _RETRY_SECONDS:
                return self._refusal
            self._refusal, self._refused_at = await self._write(), trio.current_time()
            if not self._refusal:
                self._refused_at = float("-inf")
            return self._refusal

    async def _write(self) -> str:
        try:
            with trio.move_on_after(_WRITE_SECONDS):
                await self.core.database.write(write_probe)
                return ""
        except StoreError as error:  # its text is for the operator, in the log
            return f"the store takes no writes: {error.told or 'the log says why (nothing_is_stored)'}"
        return f"the store did not commit within {_WRITE_SECONDS:.0f} seconds"


def _hosts(settings: Settings) -> frozenset[str]:
    """The names in the addresses that the configuration says are this daemon's, in small letters."""
    urls = (settings.public_url, settings.accounts.public_url)
    names = [urlsplit(url).hostname or "" for url in urls]
    return frozenset(name.lower() for name in (*names, *settings.metrics.hosts) if name)
