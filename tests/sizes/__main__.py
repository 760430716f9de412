"""Operations on a large store: seconds, peak memory, and the p99 of an innocent before and meanwhile.

    python -m tests.sizes --messages 2000000 [--folder DIR] [--keep] [--postgresql] [--only WORD ...]

The store is made first, and deleted at the end; with `--keep` it stays in DIR, and one that is there is used. Each
operation gets it as the one before has left it: retention is the last one with a daemon. The innocent is measured right
before each operation, for the ratio. With `--postgresql` the store is copied into a server of its own, which syncs as
one in use does; memory is that of the daemon or the command.
"""

import argparse
import math
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import trio

from protocols.control.client import send_command
from storage.engines.sqlite_compact import unfinished_copy
from tests.daemon import ADA, USER_TOKEN, Daemon, bearer
from tests.postgresql import Server
from tests.sizes.measuring import Innocent, cpu_seconds, forget_peak, p99, peak_mib, run
from tests.sizes.store import DAYS, build, moved, settings_at, stored

_DAY_MS = 86_400_000
_QUIET_SECONDS = 6.0
_MIB = 2**20
_DATABASE = "sizes"


@dataclass
class Row:
    what: str
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_mib: float = 0.0
    before_ms: float | None = None
    meanwhile_ms: float | None = None
    about: str = ""

    def __str__(self) -> str:
        ratio = ""
        if self.before_ms is not None and self.meanwhile_ms is not None:
            ratio = f"{self.before_ms:.0f} → {self.meanwhile_ms:.0f} ({self.meanwhile_ms / self.before_ms:.1f}x)"
        figures = f"{self.seconds:,.1f} | {self.cpu_seconds:,.1f} | {self.peak_mib:,.0f}"
        return f"| {self.what} | {figures} | {ratio} | {self.about} |"


class Sizes:
    def __init__(
        self, daemon: Daemon, folder: Path, only: list[str], server: Server | None, *, most_seconds: float
    ) -> None:
        self._most_seconds = most_seconds
        self._daemon = daemon
        self._server = server
        self._folder = folder
        self._only = only

    def rows(self) -> Iterator[Row]:
        operations: list[tuple[str, Callable[[str], Row]]] = [
            ("start", self.start),
            ("restart after a kill", self.start_after_kill),
            ("doctor beside the daemon", lambda what: self.command(what, "doctor")),
            ("backup beside the daemon", lambda what: self.command(what, "backup", self._folder / "backup.tar")),
            ("export of a tenth", self.export),
            ("key rotation", lambda what: self.stopped(what, "key", "rotate")),
            ("restore", self.restore),
            *([("salvage", self.salvage)] if self._server is None else []),
            ("retention of half", self.retention),
        ]
        if self._server is None:
            operations.append(("compact", lambda what: self.stopped(what, "store", "compact")))
        for what, operation in operations:
            if not self._only or any(word in what for word in self._only):
                yield operation(what)
        self._stop()

    @property
    def _store(self) -> Path:
        return self._daemon.state / "store.sqlite"

    @property
    def _url(self) -> str:
        return self._server.url(_DATABASE) if self._server is not None else ""

    def _size(self) -> float:
        """Of the store, in MiB."""
        if self._server is None:
            return self._store.stat().st_size / _MIB
        row = self._server.administration.execute("SELECT pg_database_size(%s)", (_DATABASE,)).fetchone()
        assert row is not None
        return float(row[0]) / _MIB

    @property
    def _pid(self) -> int:
        assert self._daemon.process is not None
        return self._daemon.process.pid

    def _running(self) -> None:
        if self._daemon.process is None:
            self._daemon.start()

    def _stop(self) -> None:
        if self._daemon.process is not None:
            self._daemon.stop()

    def start(self, what: str) -> Row:
        self._stop()
        begin = time.perf_counter()
        self._daemon.start()
        return Row(what, time.perf_counter() - begin, cpu_seconds(self._pid), peak_mib(self._pid))

    def start_after_kill(self, what: str) -> Row:
        self._running()
        Innocent(self._daemon).quiet(1.0)
        self._daemon.kill()
        return self.start(what)

    @contextmanager
    def _beside(self, row: Row) -> Iterator[None]:
        """The innocent at work, before and meanwhile; the daemon's memory, unless a command has its own."""
        self._running()
        innocent = Innocent(self._daemon)
        innocent.quiet(1.0)
        row.before_ms = p99(innocent.quiet(_QUIET_SECONDS))
        forget_peak(self._pid)
        begin, used = time.perf_counter(), cpu_seconds(self._pid)
        with innocent.at_work() as times:
            yield
        row.seconds, row.cpu_seconds = time.perf_counter() - begin, cpu_seconds(self._pid) - used
        row.meanwhile_ms = p99(times)
        row.about = f"{row.about} daemon {peak_mib(self._pid):,.0f} MiB".strip()

    def command(self, what: str, *arguments: str | Path) -> Row:
        row = Row(what)
        with self._beside(row):
            done = run(*arguments, "--config", self._daemon.config)
        assert done.status in {0, 1}, done
        row.seconds, row.cpu_seconds, row.peak_mib = done.seconds, done.cpu_seconds, done.peak_mib
        return row

    def stopped(self, what: str, *arguments: str | Path) -> Row:
        self._stop()
        before = self._size()
        done = run(*arguments, "--config", self._daemon.config)
        assert done.status == 0, done
        assert not unfinished_copy(self._store).exists()
        sizes = f"{before:,.0f} → {self._size():,.0f} MiB"
        return Row(what, done.seconds, done.cpu_seconds, done.peak_mib, about=sizes)

    def export(self, what: str) -> Row:
        row = Row(what)
        now = int(time.time() * 1000)  # half of the days of a fifth of the devices
        body = {"startDate": now - DAYS // 2 * _DAY_MS, "endDate": now, "uids": ADA}
        with self._beside(row), httpx.Client(base_url=self._daemon.base_url, timeout=60) as client:
            client.headers.update(bearer(USER_TOKEN))
            answer = client.post("/messages/export", json=body)
            answer.raise_for_status()
            status: dict[str, Any] = {"status": ""}
            while status["status"] not in {"Success", "Failure", "Expired"}:
                time.sleep(0.2)
                path = f"/messages/export/{answer.json()['data']['exportId']}/status"
                found = client.get(path)
                found.raise_for_status()
                status = found.json()
        row.peak_mib = peak_mib(self._pid)
        row.about = f"{status['status']}, {status.get('totalMessages', 0):,} messages"
        return row

    def restore(self, what: str) -> Row:
        self._stop()
        state, config = self._folder / "restored", self._folder / "restored.toml"
        url = ""
        if self._server is not None:
            self._server.make_database("restored", "template0")
            url = f'[storage]\nurl = "{self._server.url("restored")}"\n'
        config.write_text(f'state_dir = "{state}"\n{url}', encoding="utf-8")
        done = run("restore", self._folder / "backup.tar", "--config", config)
        assert done.status == 0, done
        shutil.rmtree(state)
        if self._server is not None:
            self._server.drop("restored")
        return Row(what, done.seconds, done.cpu_seconds, done.peak_mib)

    def salvage(self, what: str) -> Row:
        row = self.stopped(what, "store", "salvage")
        self._store.with_name("store.salvaged.sqlite").unlink()
        return row

    def retention(self, what: str) -> Row:
        self._stop()
        before = self._size()
        self._running()
        row = Row(what)
        innocent = Innocent(self._daemon)
        innocent.quiet(1.0)
        row.before_ms = p99(innocent.quiet(_QUIET_SECONDS))
        self._stop()
        self._daemon.settings = settings_at(self._url, f"retention_days = {DAYS // 2}")
        self._daemon.write_config()
        self._daemon.start()
        begin = time.perf_counter()
        innocent = Innocent(self._daemon)
        innocent.quiet(1.0)
        with innocent.at_work() as times:
            swept: dict[str, Any] = {"store_bytes": 0}
            while not swept["store_bytes"] and time.perf_counter() - begin < self._most_seconds:
                time.sleep(0.5)
                swept = self._statistics("retention")
        row.seconds, row.cpu_seconds = time.perf_counter() - begin, cpu_seconds(self._pid)
        row.peak_mib, row.meanwhile_ms = peak_mib(self._pid), p99(times)
        row.about = f"{swept['deleted_messages']:,} messages, {before:,.0f} → {self._size():,.0f} MiB"
        return row

    def _statistics(self, part: str) -> dict[str, Any]:
        found: dict[str, Any] = trio.run(send_command, self._daemon.state, "statistics", {})[part]
        return found


def _started(folder: Path) -> Server:
    """A server that syncs what it commits."""
    folder.parent.chmod(0o755)  # its user must enter
    folder.mkdir()
    server = Server(folder)
    server.make("fsync=on", "full_page_writes=on", "shared_buffers=256MB", "checkpoint_timeout=5min")
    server.start()
    return server


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=2_000_000)
    parser.add_argument("--folder", type=Path, default=None, help="where the store goes; 10 M messages need 10 GB")
    parser.add_argument("--only", nargs="*", default=[], help="words of the operations to measure")
    parser.add_argument("--seconds", type=float, default=math.inf, help="of retention, at most")
    parser.add_argument("--keep", action="store_true", help="use the store in the folder, and leave it there")
    parser.add_argument("--postgresql", action="store_true", help="of a store in a server of PostgreSQL")
    options = parser.parse_args()
    # `timeout` and others end it like this: the daemon must not go on without it, and the folder must not stay.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    if options.keep and options.folder is None:
        parser.error("--keep needs --folder")
    folder = options.folder if options.keep else Path(tempfile.mkdtemp(dir=options.folder))
    daemon = server = None
    try:
        begin = time.perf_counter()
        daemon = stored(folder)
        how = "kept" if daemon is not None else "made"
        daemon = daemon or build(folder, options.messages, end_ms=int(time.time() * 1000))
        size, seconds = (daemon.state / "store.sqlite").stat().st_size, time.perf_counter() - begin
        print(f"{options.messages:,} messages, {size / _MIB:,.0f} MiB, {how} in {seconds:,.0f} s\n")
        print("| Operation | Seconds | Of a processor | Peak MiB | Innocent's p99 ms, before → meanwhile | |")
        print("|---|---|---|---|---|---|", flush=True)
        if options.postgresql:
            server = _started(folder / "server")
            copied = moved(daemon, server, _DATABASE)
            print(Row("migrate-store to PostgreSQL", copied.seconds, copied.cpu_seconds, copied.peak_mib), flush=True)
        for row in Sizes(daemon, folder, options.only, server, most_seconds=options.seconds).rows():
            print(row, flush=True)
    except BaseException:  # whatever it is: its log tells why; raised again
        log = Path(tempfile.gettempdir()) / "sizes-log.txt"
        with suppress(OSError):
            shutil.copy(folder / "log.txt", log)
        if daemon is not None and daemon.process is not None:
            status = daemon.process.poll()
            how = "runs" if status is None else f"has ended with status {status}"
            print(f"the daemon {how}; its log is in {log}", file=sys.stderr)
        raise
    finally:
        if daemon is not None:
            daemon.stop()
        if server is not None:
            server.stop()
            shutil.rmtree(server.folder)
        if not options.keep:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
