"""History over REST on a generated store: what each question costs, and whether that grows with what is stored.

    python -m tests.benchmarks.history [--messages 1000000 10000000] [--folder DIR] [--rounds 15]

For each size a store is generated (tests/benchmarks/history_store.py), a daemon is started on it and asked over HTTP
from another process. Times are of whole requests; the first line is for a request that reads nothing. The first answer
to each question depends on what the caches have, and is shown by itself; the median is of the others. The daemon's CPU
time for an answer can be compared even when other programs use the machine.
"""

import argparse
import os
import shutil
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from tests.benchmarks.history_store import DEVICES, build
from tests.daemon import ADA, USER_TOKEN, Daemon, bearer, device_id

DAY_MS = 86_400_000
_EXPORTED_DAYS = 30

Question = tuple[str, str, Callable[[], Any]]


@dataclass
class Asked:
    """The answers to one question, in ms."""

    times: list[float] = field(default_factory=list)

    def add(self, question: Callable[[], Any]) -> None:
        begin = time.perf_counter()
        question()
        self.times.append((time.perf_counter() - begin) * 1000)

    def __str__(self) -> str:
        first, *others = self.times
        return f"{statistics.median(others):8.1f} ms   first {first:7.1f} ms   max {max(others):7.1f} ms"


class Questions:
    def __init__(self, daemon: Daemon, rounds: int) -> None:
        self.connect(daemon)
        self._rounds = rounds
        self.now = int(time.time() * 1000)

    def connect(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._client = httpx.Client(base_url=daemon.base_url, headers=bearer(USER_TOKEN), timeout=600)

    def get(self, path: str, **params: Any) -> Any:
        answer = self._client.get(path, params=params)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def ask_all(self) -> None:
        for what, target, question in self.questions():
            asked, cpu = Asked(), _cpu_seconds(self._daemon)
            for _ in range(self._rounds + 1):
                asked.add(question)
            cpu = (_cpu_seconds(self._daemon) - cpu) / (self._rounds + 1)
            print(f"  {what:<44} {asked}   CPU {cpu * 1000:5.1f} ms   {target}")

    def questions(self) -> Iterator[Question]:
        """The name of each question, its time limit, and the question."""
        now = self.now
        all_devices = ",".join(device_id(number) for number in range(DEVICES))
        month, year = self.month, {"startDate": now - 364 * DAY_MS, "endDate": now}
        day = {"startDate": now - DAY_MS, "endDate": now}
        first = {"sdid": device_id(0)}
        field = {"sdid": device_id(1), "field": "temperature"}
        yield "nothing (a profile)", "", partial(self.get, "/users/self")
        aggregates, histogram = "/messages/analytics/aggregates", "/messages/analytics/histogram"
        yield "aggregates over 31 days", "< 50 ms", partial(self.get, aggregates, **first, field="temperature", **month)
        for interval, times in (("month", year), ("day", month), ("hour", day)):
            question = partial(self.get, histogram, **field, interval=interval, **times)
            yield f"histogram by {interval}", "< 50 ms", question
        for interval, times, how_long in (("month", year, "a year"), ("day", month, "31 days"), ("hour", day, "a day")):
            question = partial(self.get, "/messages/presence", interval=interval, **times)
            yield f"presence of 100 devices by {interval}, {how_long}", "", question
        yield "snapshots of 100 devices", "< 20 ms", partial(self.get, "/messages/snapshots", sdids=all_devices)
        yield "last 100 of 100 devices", "< 50 ms", partial(self.get, "/messages/last", sdids=all_devices)
        question = partial(self.get, "/messages/last", sdids=all_devices, fieldPresence="temperature")
        yield "last 100 of 100 devices with a field", "", question
        yield from self._pages(device_id(0))
        question = partial(self.get, "/messages", order="desc", startDate=now - 31 * DAY_MS, endDate=now)
        yield "a page of 100 of 100 devices", "", question
        question = partial(self.get, "/messages", **first, filter="text=usual,state=true", **month)
        yield "a page of 100 with a filter that is met", "", question

    @property
    def month(self) -> dict[str, int]:
        return {"startDate": self.now - 31 * DAY_MS + 90_000, "endDate": self.now}

    def _pages(self, sdid: str) -> Iterator[Question]:
        """Cursors are given out at any depth by searches that end there."""
        times = self.month
        for share in (0, 50, 99):
            begin = times["startDate"] + (times["endDate"] - times["startDate"]) * share // 100
            page = self.get("/messages", sdid=sdid, startDate=begin, endDate=times["endDate"])
            question = partial(self.get, "/messages", sdid=sdid, offset=page["next"], **times)
            yield f"a page of 100, {share} % deep", "< 10 ms", question

    def export(self) -> None:
        for about, whose in (("one device", {"sdids": device_id(0)}), ("100 devices merged", {"uids": ADA})):
            begin, cpu = time.perf_counter(), _cpu_seconds(self._daemon)
            end_ms = int(time.time() * 1000)
            body = whose | {"startDate": end_ms - _EXPORTED_DAYS * DAY_MS, "endDate": end_ms}
            export_id = self._client.post("/messages/export", json=body).json()["data"]["exportId"]
            slowest = 0.0
            while True:
                asked = time.perf_counter()
                status = self.get(f"/messages/export/{export_id}/status")
                slowest = max(slowest, time.perf_counter() - asked)
                if status["status"] not in {"Received", "InProgress"}:
                    break
                time.sleep(0.1)
            seconds, cpu = time.perf_counter() - begin, _cpu_seconds(self._daemon) - cpu
            messages = status["totalMessages"]
            print(
                f"  export of {about:<34} {messages / seconds:8,.0f} messages/s, {messages / cpu:8,.0f} per CPU second"
                f" ({messages:,} in {seconds:.1f} s, {status['fileSize'] / 1e6:.0f} MB,"
                f" slowest answer beside it {slowest * 1000:.0f} ms)   >= 50,000/s"
            )


def measure(folder: Path, messages: int, rounds: int) -> None:
    begin = time.perf_counter()
    daemon = build(folder, messages) if not (folder / "state").exists() else Daemon(folder / "state")
    size = sum(file.stat().st_size for file in daemon.state.iterdir() if file.is_file())
    print(f"{messages:,} messages, {size / 1e9:.2f} GB, generated in {time.perf_counter() - begin:.0f} s")
    begin = time.perf_counter()
    daemon.start()
    print(f"  READY after {time.perf_counter() - begin:.2f} s   < 2 s")
    try:
        questions = Questions(daemon, rounds)
        questions.ask_all()
        questions.export()
        to_ask_cold = list(questions.questions())
    finally:
        daemon.stop()
    print("  first answers of a daemon that was just started, with nothing of the store in the page cache")
    for what, _, question in to_ask_cold:
        daemon.start()
        try:
            questions.connect(daemon)
            questions.get("/users/self")
            ask_cold(daemon, what, question)
        finally:
            daemon.stop()
    with closing(sqlite3.connect(daemon.state / "store.sqlite")) as db:
        begin = time.perf_counter()
        (number,) = db.execute("SELECT count(*) FROM message WHERE json_extract(data, '$.temperature') > 0").fetchone()
        seconds = time.perf_counter() - begin
    print(f"  yardstick: SQLite reads {number / seconds:,.0f} messages/s in one scan ({seconds * 1000:,.0f} ms)")


def ask_cold(daemon: Daemon, what: str, question: Callable[[], Any]) -> None:
    _drop_from_page_cache(daemon.state)
    before = _read_calls(daemon)
    asked = Asked()
    asked.add(question)
    print(f"  {what:<44} {asked.times[0]:8.1f} ms, {_read_calls(daemon) - before:,} reads")


def _drop_from_page_cache(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _cpu_seconds(daemon: Daemon) -> float:
    assert daemon.process is not None
    fields = Path(f"/proc/{daemon.process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _read_calls(daemon: Daemon) -> int:
    assert daemon.process is not None
    counters = Path(f"/proc/{daemon.process.pid}/io").read_text(encoding="utf-8")
    return int(dict(line.split(": ") for line in counters.splitlines())["syscr"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--folder", type=Path, default=None, help="where the stores go; needs 3 GB for 10 M messages")
    parser.add_argument("--store", type=Path, default=None, help="use the folder of a store that is there already")
    options = parser.parse_args()
    for messages in options.messages:
        if options.store is not None:
            measure(options.store, messages, options.rounds)
            continue
        folder = Path(tempfile.mkdtemp(dir=options.folder))
        try:
            measure(folder, messages, options.rounds)
        finally:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
