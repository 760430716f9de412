"""A subscriber of mosquitto that stores what it gets in batches, each a commit with synchronous=FULL.

    python -m tests.benchmarks.suite.paho_store PORT STORE

It prints a line as soon as it has subscribed, and ends with SIGTERM.
"""

import queue
import sqlite3
import sys
import time
from typing import Final

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

_BATCH: Final = 1_000
_WAIT_SECONDS: Final = 0.05


def main() -> None:
    port, store = int(sys.argv[1]), sys.argv[2]
    waiting: queue.SimpleQueue[tuple[str, bytes]] = queue.SimpleQueue()
    client = paho.Client(CallbackAPIVersion.VERSION2, client_id="keeper")

    def subscribe(*_said: object) -> None:
        client.subscribe("/v1.1/messages/#", qos=1)

    client.on_connect = subscribe
    client.on_subscribe = lambda *_: print("ready", flush=True)
    client.on_message = lambda _client, _data, message: waiting.put((message.topic, bytes(message.payload)))
    connection = sqlite3.connect(store, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("CREATE TABLE message (position INTEGER PRIMARY KEY, topic TEXT, ts INTEGER, data TEXT)")
    connection.execute("CREATE INDEX message_by_topic ON message (topic, ts)")
    connect_patiently(client, port)
    client.loop_start()
    while True:
        rows = [waiting.get()]
        end = time.monotonic() + _WAIT_SECONDS
        while len(rows) < _BATCH and (left := end - time.monotonic()) > 0:
            try:
                rows.append(waiting.get(timeout=left))
            except queue.Empty:
                break
        stamp = time.time_ns() // 1_000_000
        connection.execute("BEGIN")
        connection.executemany(
            "INSERT INTO message (topic, ts, data) VALUES (?, ?, ?)",
            [(topic, stamp, payload.decode()) for topic, payload in rows],
        )
        connection.execute("COMMIT")


def connect_patiently(client: paho.Client, port: int) -> None:
    """Connect to a broker that may not listen yet."""
    for _ in range(100):
        try:
            client.connect("127.0.0.1", port)
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise SystemExit("mosquitto does not listen")


if __name__ == "__main__":
    main()
