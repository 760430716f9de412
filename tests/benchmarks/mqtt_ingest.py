"""Durable MQTT QoS 1 ingest beside raw SQLite inserts in the same minute.

    python -m tests.benchmarks.mqtt_ingest [--seconds 5] [--devices 50]

Each message is authenticated, normalised, committed with synchronous=FULL and only then acknowledged. The yardstick
inserts the same rows into the same two-index table with `executemany`, 1,000 rows to a commit, also synchronous=FULL.
"""

import argparse
import shutil
import sqlite3
import tempfile
import time
from pathlib import Path

from storage.engines.sqlite import SqliteEngine
from tests.benchmarks.load import publish_qos1
from tests.daemon import device_id, device_token, running_daemon

PAYLOAD = b'{"temperature":21.53,"intensity":48,"state":true,"text":"ok","ts":1760000000000}'


def raw_inserts(folder: Path, seconds: float) -> float:
    """Rows per second that SQLite takes from one thread that does nothing else, into a log with two indexes."""
    engine = SqliteEngine(folder / "raw.sqlite")
    engine.migrate()
    connection = sqlite3.connect(folder / "raw.sqlite", isolation_level=None)
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("CREATE INDEX raw_by_time ON message (device, ts)")
    connection.execute("CREATE INDEX raw_by_arrival ON message (device)")
    data = PAYLOAD.decode()
    position, begin = 0, time.perf_counter()
    while (now := time.perf_counter()) - begin < seconds:
        stamp = int(now * 1000)
        rows = [(position + n, n % 50, stamp, stamp, 1, data) for n in range(1, 1001)]
        connection.execute("BEGIN")
        connection.executemany(
            "INSERT INTO message (position, device, ts, cts, mv, data) VALUES (?, ?, ?, ?, ?, ?)", rows
        )
        connection.execute("COMMIT")
        position += len(rows)
    rate = position / (time.perf_counter() - begin)
    connection.close()
    return rate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--devices", type=int, default=50)
    parser.add_argument("--folder", type=Path, default=None, help="where the stores go; a real disk, not tmpfs")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=options.folder))
    credentials = [(device_id(number), device_token(number)) for number in range(options.devices)]
    try:
        raw = raw_inserts(folder, options.seconds)
        print(f"raw SQLite inserts                {raw:>9,.0f} rows/s")
        with running_daemon(folder, devices=options.devices) as daemon:
            for window in (1, 20):
                result = publish_qos1(daemon.port("mqtt"), credentials, PAYLOAD, window=window, seconds=options.seconds)
                print(
                    f"{options.devices} devices, {window:>2} in flight          {result.rate:>9,.0f} msg/s"
                    f"   ratio {result.rate / raw:.2f}"
                    f"   p50 {result.percentile(0.5) * 1000:.1f} ms, p99 {result.percentile(0.99) * 1000:.1f} ms"
                )
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
