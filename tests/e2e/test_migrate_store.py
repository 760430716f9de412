"""`trunkline migrate-store`: to PostgreSQL and back, by the commands; the daemon answers the same on each store."""

import json
import random
import shutil
import signal
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from broker.secrets import Vault
from storage.engines import engine_at
from tests.daemon import USER_TOKEN, Daemon, bearer, device_id, run_command, start_command
from tests.postgresql import server
from tests.storage.test_store_copy import contents
from tests.store_answers import Questions
from tests.stores import make_index

pytestmark = pytest.mark.sqlite("in each run it copies a store of SQLite to PostgreSQL, and back")
DEVICES, MESSAGES = 5, 4_000
KILLS, LONGEST_SECONDS = 4, 1.5


@pytest.fixture
def url() -> Iterator[str]:
    """An empty database."""
    name = f"migrated_{time.time_ns()}"
    sql = f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C'"
    server().administration.execute(sql.encode())
    yield server().url(name)
    server().drop(name)


@pytest.fixture
def daemon(tmp_path: Path) -> Daemon:
    """A daemon that does not run, with messages of a month."""
    daemon = Daemon(tmp_path / "state")
    daemon.configure(devices=DEVICES)
    now_ms = time.time_ns() // 1_000_000
    with closing(sqlite3.connect(daemon.state / "store.sqlite")) as db, db:
        keys = [key for (key,) in db.execute("SELECT key FROM device ORDER BY key")]
        db.executemany(
            "INSERT INTO message (position, device, ts, cts, mv, data) VALUES (?, ?, ?, ?, 1, ?)",
            [
                (number + 1, keys[number % DEVICES], ts, ts, data(number))
                for number in range(MESSAGES)
                for ts in (now_ms - (MESSAGES - number) * 600_000,)
            ],
        )
    make_index(engine_at(str(daemon.state / "store.sqlite")))
    return daemon


def data(number: int) -> str:
    values = {"state": number % 3 == 0, "intensity": number % 101, "text": "as usual", "temperature": number % 97 / 4}
    return json.dumps(values, separators=(",", ":"))


def send(daemon: Daemon) -> None:
    daemon.start()
    try:
        message = {"sdid": device_id(0), "data": {"intensity": 7}}
        sent = httpx.post(f"{daemon.base_url}/messages", headers=bearer(USER_TOKEN), json=message)
        assert sent.status_code == 200, sent.text
    finally:
        daemon.stop()


def use(daemon: Daemon, url: str) -> None:
    daemon.settings = "" if url == "sqlite" else f'[storage]\nurl = "{url}"\n'
    daemon.write_config()


def answers(daemon: Daemon, questions: Questions) -> dict[str, Any]:
    daemon.start()
    try:
        return questions.answers(daemon)
    finally:
        daemon.stop()


def migrated(daemon: Daemon, to: str, *more: str | Path) -> str:
    done = run_command("migrate-store", "--to", to, *more, "--config", daemon.config)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refused(daemon: Daemon, to: str, *more: str | Path, status: int = 4) -> str:
    done = run_command("migrate-store", "--to", to, *more, "--config", daemon.config)
    assert (done.returncode, done.stdout) == (status, "")
    assert "Traceback" not in done.stderr
    return done.stderr


def test_the_daemon_answers_the_same_there_and_back(daemon: Daemon, url: str) -> None:
    questions = Questions(DEVICES, time.time_ns() // 1_000_000 - 60_000, count=40)
    before = answers(daemon, questions)
    assert {status for status, _ in before.values()} == {200}
    assert len({content for _, content in before.values()}) > len(before) // 2
    store = daemon.state / "store.sqlite"
    said = migrated(daemon, url.replace("postgres@", "postgres:swordfish@"))
    assert f'table [storage] of the configuration: url = "{url.replace("postgres@", "postgres:…@")}"' in said
    assert "swordfish" not in said
    assert "are copied and compared" in said
    use(daemon, url)
    assert answers(daemon, questions) == before
    send(daemon)
    before = answers(daemon, questions)
    assert "has a store already" in refused(daemon, str(store))
    store.rename(store.with_name("before.sqlite"))
    said = migrated(daemon, str(store))
    assert 'table [storage] of the configuration: url = "sqlite"' in said
    assert store.stat().st_mode & 0o777 == 0o600
    with closing(sqlite3.connect(store)) as db:  # no position is given twice
        assert db.execute("SELECT count(*), max(position) > ? FROM message", [MESSAGES]).fetchone() == (MESSAGES + 1, 1)
    use(daemon, "sqlite")
    assert answers(daemon, questions) == before


def test_a_killed_command_goes_on_where_it_stopped(daemon: Daemon, tmp_path: Path) -> None:
    """Killed at some moments, which are others on each machine; the tests of the copy have each moment."""
    target = tmp_path / "target.sqlite"
    for seconds in (0.3, 0.6):
        process = start_command("migrate-store", "--to", target, "--config", daemon.config)
        with suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
        process.send_signal(signal.SIGKILL)
        process.wait(30)
        assert process.stdout is not None
        process.stdout.close()
    run_command("migrate-store", "--to", target, "--config", daemon.config)
    with closing(sqlite3.connect(target)) as db:
        assert db.execute("SELECT count(*), sum(position) FROM message").fetchone() == (
            MESSAGES,
            MESSAGES * (MESSAGES + 1) // 2,
        )
        assert db.execute("SELECT count(*) FROM store_copy").fetchone() == (0,)


def test_a_command_that_is_killed_at_random_moments_copies_all_into_postgresql(daemon: Daemon, url: str) -> None:
    """At the end each table is equal, whatever the moments were: the test says them."""
    source, target = engine_at(str(daemon.state / "store.sqlite")), engine_at(url)
    source.migrate()
    chance = random.Random(seed := time.time_ns())  # noqa: S311 - moments of a test
    killed: list[float] = []
    began = time.monotonic()
    while len(killed) < KILLS:
        seconds = chance.uniform(0, LONGEST_SECONDS)
        process = start_command("migrate-store", "--to", url, "--config", daemon.config)
        with suppress(subprocess.TimeoutExpired):
            process.wait(seconds)  # it was quicker: then the copy is whole, and the next one is refused
        process.send_signal(signal.SIGKILL)
        process.wait(30)
        assert process.stdout is not None
        process.stdout.close()
        killed.append(round(seconds, 3))
    done = run_command("migrate-store", "--to", url, "--config", daemon.config)
    about = f"seed {seed}, killed after {killed} s, in {time.monotonic() - began:.1f} s"
    assert done.returncode == 0 or "has a store already" in done.stderr, (about, done.stderr)
    assert contents(target) == contents(source), about
    daemon.settings = f'[storage]\nurl = "{url}"\n'
    daemon.write_config()
    send(daemon)


def test_what_is_refused(daemon: Daemon, url: str, tmp_path: Path) -> None:
    store = daemon.state / "store.sqlite"
    assert "name another" in refused(daemon, str(store))
    assert "does not exist" in refused(daemon, url.replace("migrated_", "no_"))
    assert "No such file" in refused(daemon, str(tmp_path / "nowhere" / "store.sqlite"))
    (tmp_path / "text.sqlite").write_text("something else", encoding="utf-8")
    assert "not a database" in refused(daemon, str(tmp_path / "text.sqlite"))
    (tmp_path / "key").write_bytes(Vault.new_key() + b"\n")
    (tmp_path / "key").chmod(0o600)
    assert "another store" in refused(daemon, url, "--key-file", tmp_path / "key")
    daemon.start()
    try:
        assert "stop the daemon first" in refused(daemon, url)
    finally:
        daemon.stop()
    use(daemon, url)
    daemon.start()
    try:
        daemon_on_another_machine = Daemon(tmp_path / "other" / "state")
        daemon_on_another_machine.state.parent.mkdir()
        daemon_on_another_machine.write_config()
        (tmp_path / "other").mkdir(exist_ok=True)
        use(daemon_on_another_machine, url)
        daemon_on_another_machine.state.mkdir(mode=0o700)
        shutil.copy2(daemon.state / "key", daemon_on_another_machine.state / "key")
        said = refused(daemon_on_another_machine, str(tmp_path / "copy.sqlite"))
        assert "of a daemon are open: stop it first" in said
    finally:
        daemon.stop()
