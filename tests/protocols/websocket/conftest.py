"""Connections to the real services on a real store, whose commits a test can block."""

from collections.abc import AsyncIterator, Callable
from typing import TypeVar

import pytest
import trio

from broker.services import Services
from protocols.websocket import connection
from storage.sql import StoreError
from tests.builders import ServicesOpener
from tests.factories import World
from tests.fakes import OnTheLoop, run_inline
from tests.protocols.websocket.peers import FEW_FRAMES, MOST_FRAMES, Peers, open_peers

T = TypeVar("T")


class Disk(OnTheLoop):
    """Runs blocking work inline; commits wait while it is held, and fail while it is broken."""

    def __init__(self) -> None:
        self._free = trio.Event()
        self._free.set()
        self.is_broken = False

    def hold(self) -> None:
        self._free = trio.Event()

    def release(self) -> None:
        self._free.set()

    async def __call__(self, sync_fn: Callable[[], T], /, *, limiter: trio.CapacityLimiter | None = None) -> T:
        if limiter is not None:  # the writer's
            await self._free.wait()
            if self.is_broken:
                raise StoreError("disk full")
        return await run_inline(sync_fn)


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
async def services(opener: ServicesOpener, disk: Disk) -> AsyncIterator[Services]:
    async with opener(run_sync=disk) as opened:
        yield opened
        disk.is_broken = False
        disk.release()


@pytest.fixture
def few_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of the frames may wait for a slow reader: FEW_FRAMES, and MOST_FRAMES at any time."""
    monkeypatch.setattr(connection, "WEBSOCKET_BACKLOG", FEW_FRAMES)
    monkeypatch.setattr(connection, "MAX_WAITING_FRAMES", MOST_FRAMES)


@pytest.fixture
async def peers(services: Services, world: World) -> AsyncIterator[Peers]:
    async with open_peers(services) as opened:
        yield opened
