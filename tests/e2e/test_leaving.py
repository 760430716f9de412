"""A user who is deleted is in no file of the state directory, also after a kill, and in no later backup."""

import sqlite3
from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryFile

import httpx
import pytest
import trio

from storage.leaving import LeavingStore
from tests.daemon import (
    ADA,
    ADA_EMAIL,
    USER_TOKEN,
    Daemon,
    bearer,
    command_output,
    device_id,
    run_command,
    start_command,
)
from tests.leaving_world import rows_with, traces
from tests.postgresql import ENGINE
from tests.unpacking import unpack

NAME = "Adalind Quillfeather"
WORDS = ("quillfeather", ADA_EMAIL)
TWO_STEPS = 1_100  # messages that the removal takes two steps for
_BATCH = 1_000  # the most
PAUSE_SECONDS = 0.02  # the daemon and the command need the processor more than who looks


@pytest.fixture
def daemon(tmp_path: Path) -> Daemon:
    daemon = Daemon(tmp_path / "state")
    daemon.configure(devices=2)
    return daemon


def live(daemon: Daemon, messages: int = 10) -> None:
    """Ada sends messages, has a rule, and shares a light by a mail, which goes into the folder `outbox`."""
    with httpx.Client(base_url=daemon.base_url, headers=bearer(USER_TOKEN), timeout=60) as client:
        message = {"sdid": device_id(0), "data": {"text": NAME}}
        for first in range(0, messages, _BATCH):
            batch = [message] * min(_BATCH, messages - first)
            client.post("/messages/batch", json={"messages": batch}).raise_for_status()
        client.post(f"/devices/{device_id(1)}/shares", json={"email": "bob@example.org"}).raise_for_status()
        client.put(f"/users/{ADA}/properties", json={"properties": NAME}).raise_for_status()
        warm = {"sdid": device_id(0), "field": "temperature", "operator": ">", "operand": {"value": 25}}
        on = {"ddid": device_id(0), "action": "setOn", "parameters": {}}
        rule = {"name": NAME, "rule": {"if": {"and": [warm]}, "then": [on]}}
        client.post("/rules", json=rule).raise_for_status()


async def until_mailed(daemon: Daemon) -> None:
    with trio.fail_after(30):
        while not list((daemon.state / "outbox").glob("*.eml")):  # noqa: ASYNC110 - of another process
            await trio.sleep(PAUSE_SECONDS)


async def until_gone(daemon: Daemon) -> None:
    with trio.fail_after(60):
        while leaving(daemon) or left(daemon):  # noqa: ASYNC110 - by another process
            await trio.sleep(25 * PAUSE_SECONDS)  # to look into every file takes long


async def test_a_command_removes_a_user_from_every_file_while_the_daemon_runs(daemon: Daemon, tmp_path: Path) -> None:
    daemon.start()
    try:
        live(daemon)
        await until_mailed(daemon)
        assert {"store.sqlite-wal", "store.sqlite", "user.email"} & {one.partition(":")[0] for one in left(daemon)}
        refused = run_command("user", "delete", ADA_EMAIL, "--yes", "--config", daemon.config)
        assert (refused.returncode, "Acme" in refused.stderr) == (1, True)
        asked = ("user", "delete", ADA_EMAIL, "--yes", "--even-last-administrator", "--config", daemon.config)
        with ExitStack() as reading:
            if ENGINE == "sqlite":  # who reads the file keeps the user in its log, but no longer than that
                reader = reading.enter_context(closing(sqlite3.connect(daemon.state / "store.sqlite")))
                reader.execute("BEGIN")
                reader.execute("SELECT count(*) FROM user").fetchone()
            assert command_output(*asked) == f"{ADA}: deleted\n"
            if ENGINE == "sqlite":
                assert left(daemon)
        await until_gone(daemon)
        backup = tmp_path / "backup.tar"
        command_output("backup", backup, "--config", daemon.config)
        unpack(backup, tmp_path / "unpacked")
        assert traces(tmp_path / "unpacked", WORDS) == []
        audit = command_output("audit", "--json", "--config", daemon.config)
        assert ADA in audit
        assert ADA_EMAIL not in audit
    finally:
        daemon.stop()


async def test_a_kill_in_the_middle_is_made_good_by_the_next_start(daemon: Daemon) -> None:
    daemon.start()
    live(daemon, TWO_STEPS)
    await until_mailed(daemon)
    asked = ("user", "delete", ADA_EMAIL, "--yes", "--even-last-administrator", "--config", daemon.config)
    with TemporaryFile("w+", encoding="utf-8") as errors:
        command = start_command(*asked, stderr=errors)
        with trio.fail_after(30):
            while not leaving(daemon):
                await trio.lowlevel.checkpoint()
        daemon.kill()
        command.wait(timeout=60)
        assert command.stdout is not None
        command.stdout.close()
    assert leaving(daemon)  # the decision is durable, and its rows are there still
    assert left(daemon) != []
    daemon.start()
    try:
        assert is_unknown(daemon)
        await until_gone(daemon)
        assert leaving(daemon) == 0
    finally:
        daemon.stop()
    assert left(daemon) == []


def left(daemon: Daemon) -> list[str]:
    """Where words of the user are: in files, or in rows of the store."""
    found = traces(daemon.state, WORDS)
    if ENGINE == "postgresql":
        with daemon.store(read_only=True) as store:
            found += rows_with(store, WORDS)
    return found


def leaving(daemon: Daemon) -> int:
    with daemon.store(read_only=True) as store:
        return LeavingStore(store).count()


def is_unknown(daemon: Daemon) -> bool:
    return httpx.get(f"{daemon.base_url}/users/self", headers=bearer(USER_TOKEN)).status_code == 401
