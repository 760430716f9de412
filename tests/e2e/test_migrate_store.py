"""`trunkline migrate-store`: to PostgreSQL and back, by the commands; the daemon answers the same on each store."""

import json
import shutil
import signal
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from broker.secrets import Vault
from storage.engines import engine_at
from tests.daemon import USER_TOKEN, Daemon, bearer, device_id, run_command, start_command
from tests.postgresql import server
from tests.properties import chance
from tests.storage.test_store_copy import contents
from tests.store_answers import Questions
from tests.stores import make_index

pytestmark = pytest.mark.sqlite("in each run it copies a store of SQLite to PostgreSQL, and back")
DEVICES, MESSAGES = 5, 1_000
KILLS, LONGEST_SECONDS = 2, 0.8


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
                for ts in (now_ms - (MESSAGES - number) * 2_400_000,)
            ],
        )
    make_index(engine_at(str(daemon.state / "store.sqlite")))
    return daemon


def data(number: int) -> str:
    values = {"state": number % 3 == 0, "intensity": number % 101, "text": "as usual", "temperature": number % 97 / 4}
    return json.dumps(values, separators=(",", ":"))


def use(daemon: Daemon, url: str) -> None:
    daemon.settings = "" if url == "sqlite" else f'[storage]\nurl = "{url}"\n'
    daemon.write_config()


@contextmanager
def running(daemon: Daemon) -> Iterator[None]:
    daemon.start()
    try:
        yield
    finally:
        daemon.stop()


def refused(daemon: Daemon, to: str, *more: str | Path, status: int = 4) -> str:
    done = run_command("migrate-store", "--to", to, *more, "--config", daemon.config)
    assert (done.returncode, done.stdout) == (status, "")
    assert "Traceback" not in done.stderr
    return done.stderr


def migrated_over_kills(daemon: Daemon, to: str) -> str:
    """Kill the command at random moments, and let it end then.

    Returns its output: "", if it was killed between its last commit and its end.
    """
    moments = chance()
    for _ in range(KILLS):
        process = start_command("migrate-store", "--to", to, "--config", daemon.config)
        with suppress(subprocess.TimeoutExpired):
            process.wait(moments.uniform(0, LONGEST_SECONDS))
        process.send_signal(signal.SIGKILL)
        status = process.wait(30)
        assert process.stdout is not None
        with process.stdout:
            said = process.stdout.read()
        if status == 0:  # it was quicker
            return said
    done = run_command("migrate-store", "--to", to, "--config", daemon.config)
    assert done.returncode == 0 or "has a store already" in done.stderr, done.stderr
    return done.stdout


def test_the_daemon_answers_the_same_there_and_back(daemon: Daemon, url: str, tmp_path: Path) -> None:
    """The tests of the copy kill it at each moment, and have other values."""
    questions = Questions(DEVICES, time.time_ns() // 1_000_000 - 60_000, count=20)
    with running(daemon):
        before = questions.answers(daemon)
        assert "stop the daemon first" in refused(daemon, url)
    assert {status for status, _ in before.values()} == {200}
    assert len({content for _, content in before.values()}) > len(before) // 2
    store = daemon.state / "store.sqlite"
    said = migrated_over_kills(daemon, url.replace("postgres@", "postgres:swordfish@"))
    if said:
        assert f'table [storage] of the configuration: url = "{url.replace("postgres@", "postgres:…@")}"' in said
        assert "swordfish" not in said
        assert "are copied and compared" in said
    assert contents(engine_at(url)) == contents(engine_at(str(store)))
    use(daemon, url)
    with running(daemon):
        assert questions.answers(daemon) == before
        message = {"sdid": device_id(0), "data": {"intensity": 7}}
        httpx.post(f"{daemon.base_url}/messages", headers=bearer(USER_TOKEN), json=message).raise_for_status()
        before = questions.answers(daemon)
        assert "of a daemon are open: stop it first" in refused(on_another_machine(daemon, url, tmp_path), str(store))
    assert "has a store already" in refused(daemon, str(store))
    store.rename(store.with_name("before.sqlite"))
    done = run_command("migrate-store", "--to", store, "--config", daemon.config)
    assert done.returncode == 0, done.stderr
    assert 'table [storage] of the configuration: url = "sqlite"' in done.stdout
    assert store.stat().st_mode & 0o777 == 0o600
    with closing(sqlite3.connect(store)) as db:  # no position is given twice
        assert db.execute("SELECT count(*), max(position) > ? FROM message", [MESSAGES]).fetchone() == (MESSAGES + 1, 1)
    use(daemon, "sqlite")
    with running(daemon):
        assert questions.answers(daemon) == before


def on_another_machine(daemon: Daemon, url: str, folder: Path) -> Daemon:
    """A daemon with the same store, which does not run."""
    other = Daemon(folder / "other" / "state")
    other.state.parent.mkdir()
    use(other, url)
    other.state.mkdir(mode=0o700)
    shutil.copy2(daemon.state / "key", other.state / "key")
    return other


def test_what_is_refused(daemon: Daemon, url: str, tmp_path: Path) -> None:
    assert "name another" in refused(daemon, str(daemon.state / "store.sqlite"))
    assert "does not exist" in refused(daemon, url.replace("migrated_", "no_"))
    assert "No such file" in refused(daemon, str(tmp_path / "nowhere" / "store.sqlite"))
    (tmp_path / "text.sqlite").write_text("something else", encoding="utf-8")
    assert "not a database" in refused(daemon, str(tmp_path / "text.sqlite"))
    (tmp_path / "key").write_bytes(Vault.new_key() + b"\n")
    (tmp_path / "key").chmod(0o600)
    assert "another store" in refused(daemon, url, "--key-file", tmp_path / "key")
