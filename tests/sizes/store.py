"""A large store, written through SQL in bulk: months of messages, with their index, rollups and snapshots.

10,000 devices wake up in turn and send ten messages within ten seconds. One of 1,000 users has a fifth of them. 10,000
rules and 1,000 subscriptions look at devices that send nothing during the measurements.
"""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

import httpx

from tests.daemon import ADA, DASHBOARD, USER_TOKEN, Daemon, bearer, device_id
from tests.postgresql import Server
from tests.sizes.measuring import Command, run

DEVICES: Final = 10_000
USERS: Final = 1_000
RULES: Final = 10_000
SUBSCRIPTIONS: Final = 1_000
DAYS: Final = 60
#: The subscriptions' callbacks would go to this machine.
SETTINGS: Final = "[outbound]\nallow_private_addresses = true\n"
_DAY_MS: Final = 86_400_000
_BURST: Final = 10
#: Devices with tokens that the measurements know.
_SENDERS: Final = 60
_AT_ONCE: Final = 1_000_000
#: A file that says that the store is complete.
_MADE: Final = "made"

_NUMBERS: Final = "WITH RECURSIVE n(i) AS (SELECT :first UNION ALL SELECT i + 1 FROM n WHERE i + 1 < :behind)"
_MESSAGES: Final = f"""{_NUMBERS}
INSERT INTO message (position, device, ts, cts, mv, data)
SELECT i + 1, i / 10 % :devices + 1, at, at, 1,
  printf('{{"state":%s,"intensity":%d,"temperature":%.2f,"text":"as usual"}}', iif(i % 2, 'true', 'false'), i % 101,
    20 + i % 700 / 100.0)
FROM (SELECT i, :start + CAST(i / 10 * :step AS INTEGER) + i % 10 * 1000 AS at FROM n)
"""
_ENTRIES: Final = f"""{_NUMBERS}
INSERT INTO message_entry (device, upto, first_ts, last_ts, ordered, number, positions)
SELECT i % :devices + 1, 10 * i + 10, at, at + 9000, 1, 10, printf('[%d,%d,%d,%d,%d,%d,%d,%d,%d,%d]',
  10 * i + 1, 10 * i + 2, 10 * i + 3, 10 * i + 4, 10 * i + 5, 10 * i + 6, 10 * i + 7, 10 * i + 8,
  10 * i + 9, 10 * i + 10)
FROM (SELECT i, :start + CAST(i * :step AS INTEGER) AS at FROM n)
"""
_ROLLUPS: Final = f"""{_NUMBERS}
INSERT INTO rollup
SELECT i % :devices + 1, f.key, :level, at - at % :width, count(*) * 10, count(*) * 10, 20.0, 27.0, 235.0 * count(*),
  23.5, 0.0, 40.0 * count(*)
FROM (SELECT i, :start + CAST(i * :step AS INTEGER) AS at FROM n), (SELECT key FROM field LIMIT 2) AS f
GROUP BY 1, 2, 4 ORDER BY 1, 2, 4
"""
_SNAPSHOTS: Final = """
INSERT OR REPLACE INTO snapshot (device, fields, position)
SELECT key, printf('{"intensity":[%d,1,48],"temperature":[%d,1,21.53]}', :end, :end), :head FROM device
"""
_OTHERS: Final = (
    """WITH RECURSIVE n(i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM n WHERE i < :users)
INSERT INTO user (key, id, email, email_key, name, full_name, account_type, created_on, modified_on)
SELECT i, printf('%032x', i), printf('user%d@example.org', i), printf('user%d@example.org', i), printf('user%d', i),
  'Grown', account_type, created_on, modified_on FROM n, user WHERE key = 1""",
    """INSERT INTO access_grant (user, application, device_type, can_read, can_write)
SELECT u.key, g.application, g.device_type, g.can_read, g.can_write FROM user AS u, access_grant AS g
WHERE u.key > 1 AND g.user = 1""",
    """WITH RECURSIVE n(i) AS (SELECT :senders + 1 UNION ALL SELECT i + 1 FROM n WHERE i < :devices)
INSERT INTO device (key, id, owner, device_type, name, manifest_version, manifest_version_policy, enabled, created_on,
  cloud_authorization)
SELECT i, printf('%032x', i), iif(i % 5, 2 + i % (:users - 1), 1), device_type, 'Grown', 1, manifest_version_policy, 1,
  created_on, cloud_authorization FROM n, device WHERE key = 1""",
    """INSERT INTO device_token (device, hash, sealed, application, created_on)
SELECT d.key, randomblob(32), t.sealed, t.application, t.created_on FROM device AS d, device_token AS t
WHERE d.key > :senders AND t.device = 1""",
    """WITH RECURSIVE n(i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM n WHERE i <= :rules)
INSERT INTO rule SELECT i, printf('%032x', i), d.owner, application, scope, r.name, description,
  replace(replace(body, :device, d.id), :other, d.id), r.enabled, since, r.created_on, modified_on, invalidated_on,
  findings, stopped_on, stop_reason, revision
FROM n, rule AS r, device AS d WHERE r.key = 1 AND d.key = :senders + 1 + i % (:devices - :senders)""",
    """INSERT OR IGNORE INTO rule_use SELECT r.key, u.kind, iif(u.kind = 'device',
  :senders + 1 + r.key % (:devices - :senders), u.object)
FROM rule AS r, rule_use AS u WHERE u.rule = 1 AND r.key > 1""",
    """WITH RECURSIVE n(i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM n WHERE i <= :subscriptions)
INSERT INTO subscription SELECT i, printf('%032x', i), application, d.owner, message_type, spelling, s.device_type,
  d.key, destination, include_shared, description, payload, callback_url, stream_key, stream_secret, stream_region,
  stream_name, nonce, handshake_tries, handshake_on, webhook_secret, old_webhook_secret, old_secret_until, 'ACTIVE',
  s.created_on, modified_on, failing_since, last_error, removed_on
FROM n, subscription AS s, device AS d WHERE s.key = 1 AND d.key = :senders + 1 + i % (:devices - :senders)""",
    "DELETE FROM subscription WHERE key = 1",
    "INSERT OR REPLACE INTO subscription_cursor SELECT key, :head, 0 FROM subscription",
)


def build(folder: Path, messages: int, *, end_ms: int) -> Daemon:
    """A daemon that does not run, on a store of so many messages, a multiple of ten; the last came at `end_ms`."""
    daemon = _daemon(folder)
    daemon.configure(devices=_SENDERS)
    with daemon.store() as store:
        uris = {"id": DASHBOARD, "uris": '["http://localhost/"]'}
        store.execute("UPDATE application SET redirect_uris = :uris WHERE id = :id", uris)
    daemon.start()
    try:
        _make_patterns(daemon)
    finally:
        daemon.stop()
    with closing(sqlite3.connect(daemon.state / "store.sqlite", isolation_level=None)) as db:
        # Without a journal each page is written once.
        for pragma in ("journal_mode=OFF", "synchronous=OFF", "cache_size=-400000", "temp_store=FILE"):
            db.execute(f"PRAGMA {pragma}")
        _fill(db, messages, end_ms)
    (folder / _MADE).touch()
    return daemon


def moved(daemon: Daemon, server: Server, database: str) -> Command:
    """Copy the store into a new database; the daemon has it there from now on."""
    server.make_database(database, "template0")
    done = run("migrate-store", "--to", server.url(database), "--config", daemon.config)
    assert done.status == 0, done
    daemon.settings = settings_at(server.url(database))
    daemon.write_config()
    return done


def settings_at(url: str, *more: str) -> str:
    """The settings with the store at a URL, or in the state directory if it is empty, and more lines about it."""
    lines = [*([f'url = "{url}"'] if url else []), *more]
    return "\n".join([SETTINGS.rstrip(), *(["[storage]", *lines] if lines else []), ""])


def stored(folder: Path) -> Daemon | None:
    """The daemon of a store that `build` has made in this folder before, if it has."""
    if not (folder / _MADE).exists():
        return None
    daemon = _daemon(folder)
    daemon.write_config()
    return daemon


def _daemon(folder: Path) -> Daemon:
    return Daemon(folder / "state", SETTINGS, log=(folder / "log.txt").open("w+", encoding="utf-8"))


def _make_patterns(daemon: Daemon) -> None:
    """A rule and a subscription, of which the others are copies."""
    with httpx.Client(base_url=daemon.base_url, headers=bearer(USER_TOKEN), timeout=30) as client:
        condition = {"sdid": device_id(0), "field": "temperature", "operator": ">", "operand": {"value": 90}}
        body = {"if": {"and": [condition]}, "then": [{"ddid": device_id(1), "action": "setOn"}]}
        client.post("/rules", json={"name": "Rule", "rule": body}, params={"uid": ADA}).raise_for_status()
        wanted = {"messageType": "message", "uid": ADA, "sdid": device_id(0), "callbackUrl": "http://localhost:9/x"}
        client.post("/subscriptions", json=wanted).raise_for_status()


def fill_log(db: sqlite3.Connection, messages: int, *, end_ms: int) -> None:
    """Messages and their index."""
    given = _given(messages, end_ms)
    db.execute("BEGIN")
    for sql, number in ((_MESSAGES, messages), (_ENTRIES, messages // _BURST)):
        for first in range(0, number, _AT_ONCE):
            db.execute(sql, {**given, "first": first, "behind": min(number, first + _AT_ONCE)})
    for name in ("head", "indexed"):
        db.execute("INSERT OR REPLACE INTO counter (name, value) VALUES (?, ?)", (name, messages))
    db.execute("COMMIT")


def _fill(db: sqlite3.Connection, messages: int, end_ms: int) -> None:
    given = _given(messages, end_ms)
    fill_log(db, messages, end_ms=end_ms)
    db.execute("BEGIN")
    for path in ("", "temperature"):
        db.execute("INSERT OR IGNORE INTO field (path) VALUES (?)", (path,))
    for sql in _OTHERS:
        db.execute(sql, given)
    for level, width in (("minute", 60_000), ("hour", 3_600_000), ("day", _DAY_MS)):
        times = {"first": 0, "behind": messages // _BURST, "level": level, "width": width}
        db.execute(_ROLLUPS, {**given, **times})
    db.execute(_SNAPSHOTS, given)
    # A consumer that is missing would read the whole log, and retention would wait for it.
    for consumer in ("folds", "rules", "subscriptions"):
        db.execute("INSERT OR REPLACE INTO consumer VALUES (:name, :head)", {**given, "name": consumer})
    db.execute("COMMIT")


def _given(messages: int, end_ms: int) -> dict[str, str | int | float]:
    """The values in the statements above."""
    numbers = {"devices": DEVICES, "users": USERS, "rules": RULES, "subscriptions": SUBSCRIPTIONS, "senders": _SENDERS}
    times = {"start": end_ms - DAYS * _DAY_MS, "step": DAYS * _DAY_MS / (messages // _BURST), "end": end_ms}
    return {**numbers, **times, "head": messages, "device": device_id(0), "other": device_id(1)}
