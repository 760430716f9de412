"""History over REST on a generated store: what each question costs, and whether that grows with what is stored.

    python -m tests.benchmarks.history [--messages 1000000 10000000] [--folder DIR] [--rounds 15]

For each size a store is generated (tests/benchmarks/history_store.py), a daemon is started on it and asked over HTTP
from another process. A time is that of a whole request; the first line says what an empty one costs. The first answer
to each question finds what the caches happen to have and is shown by itself; the median is of the others.
"""

import argparse
import shutil
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.benchmarks.history_store import DEVICES, build
from tests.daemon import ADA, USER_TOKEN, Daemon, bearer, device_id

_DAY_MS = 86_400_000
_EXPORTED_DAYS = 30


@dataclass
class Asked:
    """The answers to one question, in ms."""

    times: list[float] = field(default_factory=list)

    def __str__(self) -> str:
        first, *others = self.times
        return f"{statistics.median(others):8.1f} ms   first {first:7.1f} ms   max {max(others):7.1f} ms"


class Questions:
    def __init__(self, daemon: Daemon, rounds: int) -> None:
        self._client = httpx.Client(base_url=daemon.base_url, headers=bearer(USER_TOKEN), timeout=600)
        self._rounds = rounds
        self.now = int(time.time() * 1000)

    def get(self, path: str, **params: Any) -> Any:
        answer = self._client.get(path, params=params)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def ask(self, what: str, target: str, question: Callable[[], Any]) -> None:
        asked = Asked()
        for _ in range(self._rounds + 1):
            begin = time.perf_counter()
            question()
            asked.times.append((time.perf_counter() - begin) * 1000)
        print(f"  {what:<44} {asked}   {target}")

    def ask_all(self) -> None:
        now, first, second = self.now, device_id(0), device_id(1)
        all_devices = ",".join(device_id(number) for number in range(DEVICES))
        month = {"startDate": now - 31 * _DAY_MS + 90_000, "endDate": now}
        year = {"startDate": now - 364 * _DAY_MS, "endDate": now}
        self.ask("nothing (a profile)", "", lambda: self.get("/users/self"))
        self.ask(
            "aggregates over 31 days",
            "< 50 ms",
            lambda: self.get("/messages/analytics/aggregates", sdid=first, field="temperature", **month),
        )
        for interval, times in (
            ("month", year),
            ("day", month),
            ("hour", {"startDate": now - _DAY_MS, "endDate": now}),
        ):
            self.ask(
                f"histogram by {interval}",
                "< 50 ms",
                lambda interval=interval, times=times: self.get(  # type: ignore[misc]
                    "/messages/analytics/histogram", sdid=second, field="temperature", interval=interval, **times
                ),
            )
        self.ask(
            "presence of 100 devices by month, a year",
            "",
            lambda: self.get("/messages/presence", interval="month", **year),
        )
        self.ask("snapshots of 100 devices", "< 20 ms", lambda: self.get("/messages/snapshots", sdids=all_devices))
        self.ask("last 100 of 100 devices", "< 50 ms", lambda: self.get("/messages/last", sdids=all_devices))
        self.ask(
            "last 100 of 100 devices with a field",
            "",
            lambda: self.get("/messages/last", sdids=all_devices, fieldPresence="temperature"),
        )
        self.ask_pages(first, month)
        self.ask(
            "a page of 100 of 100 devices",
            "",
            lambda: self.get("/messages", order="desc", startDate=now - 31 * _DAY_MS, endDate=now),
        )
        self.ask(
            "a page of 100 with a filter that is met",
            "",
            lambda: self.get("/messages", sdid=first, filter="text=usual,state=true", **month),
        )

    def ask_pages(self, sdid: str, times: dict[str, int]) -> None:
        """Cursors are given out at any depth by searches that end there."""
        for share in (0, 50, 99):
            begin = times["startDate"] + (times["endDate"] - times["startDate"]) * share // 100
            page = self.get("/messages", sdid=sdid, startDate=begin, endDate=times["endDate"])
            cursor = page["next"]
            self.ask(
                f"a page of 100, {share} % deep",
                "< 10 ms",
                lambda cursor=cursor: self.get("/messages", sdid=sdid, offset=cursor, **times),  # type: ignore[misc]
            )

    def export(self) -> None:
        start = self.now - _EXPORTED_DAYS * _DAY_MS
        for about, whose in (("one device", {"sdids": device_id(0)}), ("100 devices merged", {"uids": ADA})):
            begin = time.perf_counter()
            body = whose | {"startDate": start, "endDate": self.now}
            export_id = self._client.post("/messages/export", json=body).json()["data"]["exportId"]
            slowest = 0.0
            while True:
                asked = time.perf_counter()
                status = self.get(f"/messages/export/{export_id}/status")
                slowest = max(slowest, time.perf_counter() - asked)
                if status["status"] not in {"Received", "InProgress"}:
                    break
                time.sleep(0.1)
            seconds = time.perf_counter() - begin
            print(
                f"  export of {about:<34} {status['totalMessages'] / seconds:8,.0f} messages/s"
                f" ({status['totalMessages']:,} in {seconds:.1f} s, {status['fileSize'] / 1e6:.0f} MB,"
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
    finally:
        daemon.stop()
    with sqlite3.connect(daemon.state / "store.sqlite") as db:
        begin = time.perf_counter()
        (number,) = db.execute("SELECT count(*) FROM message WHERE json_extract(data, '$.temperature') > 0").fetchone()
        seconds = time.perf_counter() - begin
    print(f"  yardstick: SQLite reads {number / seconds:,.0f} messages/s in one scan ({seconds * 1000:,.0f} ms)")


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
