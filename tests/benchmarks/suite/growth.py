"""The same load on daemons that differ in one number only: stored messages, device types, users, subscribers."""

import multiprocessing
import multiprocessing.synchronize
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tests.benchmarks import history_store
from tests.benchmarks.suite.contest import Measure, Row
from tests.benchmarks.suite.mqtt import of_daemon
from tests.benchmarks.websocket import LIVE
from tests.benchmarks.websocket_load import Drive, Reader, connect
from tests.daemon import Daemon, device_id, running_daemon

_DEVICES: Final = 50
_WINDOW: Final = 20
_LONG_SECONDS: Final = 3600.0

#: The numbers of each row. The row of devices is in every comparison.
_TYPES: Final = (1, 100, 1_000)
_USERS: Final = (1, 1_000, 10_000)
_SUBSCRIBERS: Final = (0, 50, 500)

#: Each statement adds rows 2 to `:number` that are like the first one.
_MORE_TYPES: Final = """
WITH RECURSIVE n(i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM n WHERE i < :number)
INSERT INTO device_type (key, id, unique_name, name, folded_name, organization, published, protected, rsp, tags,
  created_on, has_cloud_connector, last_updated, vid, approved_list)
SELECT i, printf('dt%030d', i), printf('example.grown%d', i), 'Grown', 'grown', organization, published, protected, rsp,
  tags, created_on, has_cloud_connector, last_updated, i, approved_list FROM n, device_type WHERE key = 1
"""
_MORE_MANIFESTS: Final = """
WITH RECURSIVE n(i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM n WHERE i < :number)
INSERT INTO manifest (device_type, version, document, approved, created_on)
SELECT i, 1, document, approved, created_on FROM n, manifest WHERE device_type = 1
"""
_MORE_USERS: Final = """
WITH RECURSIVE n(i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM n WHERE i < :number)
INSERT INTO user (key, id, email, name, full_name, account_type, created_on, modified_on)
SELECT i, printf('%032x', i), printf('user%d@example.org', i), printf('user%d', i), 'Grown', account_type, created_on,
  modified_on FROM n, user WHERE key = 1
"""
_MORE_DEVICES: Final = """
WITH RECURSIVE n(i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM n WHERE i < :number)
INSERT INTO device (id, owner, device_type, name, manifest_version, manifest_version_policy, enabled, created_on,
  cloud_authorization)
SELECT printf('%032x', i), OWNER, TYPE, 'Grown', 1, manifest_version_policy, 1, created_on, cloud_authorization
  FROM n, device WHERE key = 1
"""
#: The devices that send are spread over the types and users that there are.
_SPREAD_TYPES: Final = "UPDATE device SET device_type = 1 + (key - 1) % :number WHERE key <= 50"
_SPREAD_USERS: Final = "UPDATE device SET owner = 1 + (key - 1) % :number WHERE key <= 50"


def rows(messages: Sequence[int]) -> Iterator[Row]:
    """`messages`: the numbers of stored messages. Building them takes a minute for each ten million."""
    load = f"MQTT QoS 1, {_DEVICES} devices, {_WINDOW} in flight, by"
    yield _row(f"{load} messages that are stored", stored, messages)
    yield _row(f"{load} device types, each with a device", of_types, _TYPES)
    yield _row(f"{load} users, each with a device", of_users, _USERS)
    yield _row(f"{load} live subscribers of one device each", subscribed, _SUBSCRIBERS)


def _row(name: str, build: Callable[[int], AbstractContextManager[Measure]], numbers: Sequence[int]) -> Row:
    return Row(name, {f"{number:,}": partial(build, number) for number in numbers})


@contextmanager
def stored(messages: int) -> Iterator[Measure]:
    with TemporaryDirectory(dir="/var/tmp") as folder:
        daemon = history_store.build(Path(folder), messages)
        yield from _measured(daemon)


@contextmanager
def of_types(number: int) -> Iterator[Measure]:
    with TemporaryDirectory(dir="/var/tmp") as folder:
        devices = _MORE_DEVICES.replace("OWNER", "owner").replace("TYPE", "i")
        more = (_MORE_TYPES, _MORE_MANIFESTS, devices, _SPREAD_TYPES)
        yield from _measured(_grown(Path(folder), number, *more))


@contextmanager
def of_users(number: int) -> Iterator[Measure]:
    with TemporaryDirectory(dir="/var/tmp") as folder:
        devices = _MORE_DEVICES.replace("OWNER", "i").replace("TYPE", "device_type")
        yield from _measured(_grown(Path(folder), number, _MORE_USERS, devices, _SPREAD_USERS))


@contextmanager
def subscribed(number: int) -> Iterator[Measure]:
    """A process of its own reads what the subscribers get."""
    with TemporaryDirectory(dir="/var/tmp") as folder, running_daemon(Path(folder), devices=_DEVICES) as daemon:
        ready = multiprocessing.Event()
        readers = multiprocessing.Process(target=_read, args=(daemon.port("http"), number, ready), daemon=True)
        readers.start()
        ready.wait(60)
        try:
            yield of_daemon(daemon, _DEVICES, _WINDOW)
        finally:
            readers.kill()
            readers.join()


def _read(port: int, number: int, ready: "multiprocessing.synchronize.Event") -> None:
    drive = Drive(Reader(connect(port, f"{LIVE}&sdids={device_id(n % _DEVICES)}")) for n in range(number))
    ready.set()
    drive.run(_LONG_SECONDS)


def _grown(folder: Path, number: int, *statements: str) -> Daemon:
    daemon = Daemon(folder / "state")
    daemon.configure(devices=_DEVICES)
    if number > 1:
        with closing(sqlite3.connect(daemon.state / "store.sqlite")) as db, db:
            for statement in statements:
                db.execute(statement, {"number": number})
    return daemon


def _measured(daemon: Daemon) -> Iterator[Measure]:
    daemon.start()
    try:
        yield of_daemon(daemon, _DEVICES, _WINDOW)
    finally:
        daemon.stop()
