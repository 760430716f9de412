"""Gain of a writer in a process of its own: the same commits in a thread and in a process, alternating.

    .venv/bin/python -m tests.benchmarks.writer_process [--rounds 5] [--seconds 3]

One thread stands for the event loop: it works for each message as much as the daemon's does, then it hands groups of
rows to the writer, one group while the writer has another one. The writer inserts a group as the daemon's store does,
one statement over one JSON text, and commits. Prints messages per second of both, and the ratios of the rounds.
"""

import argparse
import multiprocessing
import queue
import sqlite3
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import msgspec

from protocols.operation.interpreter import switch_threads_often

_ENCODE: Final = msgspec.json.Encoder().encode
_DATA: Final = '{"state":true,"intensity":48,"temperature":21.53,"text":"as usual"}'
_INSERT: Final = """
INSERT INTO message (position, device, ts, cts, mv, data)
SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'),
  json_extract(value, '$[3]'), json_extract(value, '$[4]'), json_extract(value, '$[5]') FROM json_each(:rows)
"""
#: Microseconds of the event loop for each message: 50 devices with 20 messages in flight, and with one.
_LOADS: Final = {"50 x 20": (10, 500), "50 x 1": (45, 40)}

Write = Callable[[bytes], None]
#: Hands a group over, and waits until the one before it is durable.
Hand = Callable[[bytes], None]


def writer(path: Path) -> Write:
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=FULL")
    db.execute(
        "CREATE TABLE IF NOT EXISTS message (position INTEGER PRIMARY KEY, device INTEGER, ts INTEGER, cts INTEGER,"
        " mv INTEGER, data TEXT)"
    )

    def write(rows: bytes) -> None:
        db.execute("BEGIN IMMEDIATE")
        db.execute(_INSERT, {"rows": rows.decode()})
        db.execute("COMMIT")

    return write


@contextmanager
def in_thread(path: Path) -> Iterator[Hand]:
    groups: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    done: queue.SimpleQueue[None] = queue.SimpleQueue()
    done.put(None)

    def run() -> None:
        write = writer(path)
        while (rows := groups.get()) is not None:
            write(rows)
            done.put(None)

    thread = threading.Thread(target=run)
    thread.start()

    def hand(rows: bytes) -> None:
        done.get()
        groups.put(rows)

    try:
        yield hand
    finally:
        groups.put(None)
        thread.join()


def _serve(path: Path, pipe: Connection) -> None:
    write = writer(path)
    while rows := pipe.recv_bytes():
        write(rows)
        pipe.send_bytes(b"1")


@contextmanager
def in_process(path: Path) -> Iterator[Hand]:
    """A pair of Unix sockets, as `multiprocessing` makes them."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=_serve, args=(path, theirs), daemon=True)
    process.start()
    is_first = True

    def hand(rows: bytes) -> None:
        nonlocal is_first
        if not is_first:
            ours.recv_bytes()
        is_first = False
        ours.send_bytes(rows)

    with closing(ours):
        try:
            yield hand
        finally:
            ours.send_bytes(b"")
            process.join()


def _work(steps: int) -> None:
    for _ in range(steps):
        pass


def _steps_in(micros: int) -> int:
    begin = time.thread_time()
    _work(1_000_000)
    return int(micros / (time.thread_time() - begin))


def _rate(hand: Hand, steps: int, group: int, seconds: float, position: int) -> tuple[float, int]:
    rows: list[tuple[Any, ...]] = []
    begin, first = time.perf_counter(), position
    end = begin + seconds
    while time.perf_counter() < end:
        rows.clear()
        for _ in range(group):
            position += 1
            rows.append((position, position % 50, 1_700_000_000_000 + position, 1_700_000_000_000, 1, _DATA))
            _work(steps)
        hand(_ENCODE(rows))
    return (position - first) / (time.perf_counter() - begin), position


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    options = parser.parse_args()
    switch_threads_often()
    for name, (micros, group) in _LOADS.items():
        ratios, position = [], 0
        with (
            TemporaryDirectory(dir="/var/tmp") as folder,
            in_thread(Path(folder) / "thread") as thread,
            in_process(Path(folder) / "process") as process,
        ):
            for number in range(options.rounds):
                rates, steps = {}, _steps_in(micros)
                for hand in (thread, process) if number % 2 else (process, thread):
                    rates[hand], position = _rate(hand, steps, group, options.seconds, position)
                ratios.append(rates[process] / rates[thread])
                print(f"{name}: thread {rates[thread]:,.0f}/s, process {rates[process]:,.0f}/s", flush=True)
        middle = statistics.median(ratios)
        print(f"{name}: a process is {middle:.2f} ({min(ratios):.2f} to {max(ratios):.2f}) times as fast")


if __name__ == "__main__":
    main()
