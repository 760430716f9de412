"""The watchdog proves that the store takes writes; on a full disk it says so instead (reference 27.8)."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from protocols.operation.systemd import feed_watchdog
from storage.database import Database
from storage.engines.sqlite import SqliteEngine
from storage.sql import StoreError, StoreFullError
from tests.fakes import BreakableEngine, on_loop

pytestmark = pytest.mark.slow


SECONDS = 60


@pytest.fixture
def notified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """The socket of a systemd that watches this process."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", str(SECONDS * 1_000_000))
        monkeypatch.delenv("WATCHDOG_PID", raising=False)
        yield systemd


def read(notified: socket.socket) -> list[str]:
    """The datagrams to systemd since the last call."""
    found = []
    while True:
        try:
            found.append(notified.recv(1000).decode())
        except BlockingIOError:
            return found


async def test_it_is_fed_by_writes_and_not_by_empty_transactions(
    engine: SqliteEngine, notified: socket.socket, autojump_clock: MockClock
) -> None:
    """The engine fails like a disk on which nothing can be written any more."""
    breakable = BreakableEngine(engine)
    database = Database(breakable, worker=on_loop())
    await database.open()
    async with trio.open_nursery() as nursery:
        await nursery.start(database.commit_forever)
        nursery.start_soon(feed_watchdog, database)
        await trio.sleep(SECONDS + 1)
        fed = read(notified)
        assert len(fed) >= 3
        assert all(one.startswith("WATCHDOG=1") for one in fed)
        written = await database.read(lambda tx: tx.messages.counter("watchdog"))
        assert written == len(fed)
        breakable.error = StoreError("OperationalError: disk I/O error")
        read(notified)
        await trio.sleep(3 * SECONDS)
        assert read(notified) == []
        breakable.error = StoreFullError("OperationalError: database or disk is full")
        await trio.sleep(SECONDS)
        full = read(notified)
        assert len(full) >= 3
        assert set(full) == {"WATCHDOG=1\nSTATUS=The disk is full: nothing is stored"}
        nursery.cancel_scope.cancel()


async def test_the_operator_is_told_once_a_minute_however_many_writes_fail(
    engine: SqliteEngine, autojump_clock: MockClock
) -> None:
    breakable = BreakableEngine(engine)
    database = Database(breakable, worker=on_loop())
    await database.open()
    async with trio.open_nursery() as nursery:
        await nursery.start(database.commit_forever)
        with capture_logs() as logs:
            breakable.error = StoreFullError("OperationalError: database or disk is full")
            for _ in range(601):
                with pytest.raises(StoreError):
                    await database.write(lambda tx: tx.messages.set_counter("a", 1))
                await trio.sleep(0.2)
            breakable.error = None
            await database.write(lambda tx: tx.messages.set_counter("a", 1))
        told = [(one["event"], one["failed_commits"], one["seconds"]) for one in logs]
        assert told == [
            ("nothing_is_stored", 1, 0),
            ("nothing_is_stored", 301, 60),
            ("nothing_is_stored", 601, 120),
            ("stored_again", 601, 120),
        ]
        assert "restart does not help" in logs[0]["help"]
        nursery.cancel_scope.cancel()


@pytest.mark.sqlite("its full disk is a number of pages")
def test_a_full_disk_is_known_by_its_code(engine: SqliteEngine) -> None:
    connection = engine.open(read_only=False)
    pages = connection.execute("PRAGMA page_count").one()
    assert pages is not None
    connection.execute(f"PRAGMA max_page_count = {pages['page_count']}")
    connection.begin(write=True)
    rows = [[f"{number:0500}", 1] for number in range(1_000)]
    with pytest.raises(StoreFullError):
        connection.put_many("counter", ["name", "value"], ["name"], rows)
    connection.rollback()
    connection.close()
