"""`trunkline serve`: what it refuses before it starts, `--check`, and its ready line (reference 27.1)."""

import json
import os
import shutil
import sqlite3
import sys
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from config.loading import load_settings
from config.logging import configure_logging
from config.settings import Address
from protocols.cli import main
from protocols.cli.serve import announce
from tests.certificates import Authority
from tests.daemon import Daemon
from tests.stores import note_step, remove_store


@pytest.fixture
def daemon(tmp_path: Path) -> Daemon:
    """The configuration and the state of a stopped daemon."""
    daemon = Daemon(tmp_path / "state")
    daemon.configure(devices=4)
    return daemon


def check(daemon: Daemon) -> Result:
    return CliRunner().invoke(main, ["serve", "--check", "--config", str(daemon.config)])


def test_a_configuration_without_a_listener_is_refused(tmp_path: Path) -> None:
    config = tmp_path / "trunkline.toml"
    config.write_text(f'state_dir = "{tmp_path / "state"}"\n')
    done = CliRunner().invoke(main, ["serve", "--config", str(config)])
    assert done.exit_code == 2
    assert done.stderr == f"trunkline: {config}: there is no listener: set http.bind, mqtt.bind or another one\n"
    assert not (tmp_path / "state").exists()


def test_a_check_changes_nothing_and_names_the_listeners(daemon: Daemon) -> None:
    before = {path.name: path.read_bytes() for path in daemon.state.iterdir() if path.is_file()}
    done = check(daemon)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout == "configuration, certificates, key and store can be used: http.bind, mqtt.bind\n"
    assert {path.name: path.read_bytes() for path in daemon.state.iterdir() if path.is_file()} == before
    remove_store(load_settings(daemon.config, {}))
    shutil.rmtree(daemon.state)
    assert check(daemon).exit_code == 0
    assert not daemon.state.exists()


@pytest.mark.both_engines
def test_a_check_names_every_problem(daemon: Daemon, tmp_path: Path) -> None:
    authority = Authority(now=datetime.now(UTC))
    certificate, _ = authority.issue("one").files(tmp_path, "one")
    _, key = authority.issue("two").files(tmp_path, "two")
    daemon.settings = f'[coap]\ndtls_bind = "127.0.0.1:0"\n[tls]\ncertificate = "{certificate}"\nkey = "{key}"\n'
    daemon.write_config()
    with daemon.store() as store:
        note_step(store, "9999_x")
    done = check(daemon)
    tls, of_store = done.stderr.splitlines()
    assert done.exit_code == 2
    assert f"tls: cannot use certificate {certificate} with key {key}" in tls
    assert "a newer version has made this store: 9999_x" in of_store


def test_a_check_finds_addresses_that_cannot_be_listened_on(daemon: Daemon) -> None:
    daemon.settings = (
        '[coap]\nbind = ["127.0.0.1:5683", "192.0.2.1:0"]\n[lwm2m]\ntcp_bind = "*:5688"\ndtls_bind = "127.0.0.1:5683"\n'
    )
    daemon.write_config()
    done = check(daemon)
    assert done.exit_code == 2
    missing, taken = done.stderr.splitlines()
    assert missing.startswith("trunkline: coap.bind: 192.0.2.1:0: ")
    assert taken == "trunkline: lwm2m.dtls_bind: 127.0.0.1:5683: coap.bind has it already"


@pytest.mark.parametrize(("change", "said"), [("remove", "No such file"), ("replace", "opens none of the store")])
def test_a_check_finds_a_key_that_is_missing_or_of_another_store(daemon: Daemon, change: str, said: str) -> None:
    key = daemon.state / "key"
    key.unlink()
    if change == "replace":
        key.write_text("A" * 43 + "=\n")
        key.chmod(0o600)
    done = check(daemon)
    assert done.exit_code == 2
    assert said in done.stderr


@pytest.mark.parametrize(("form", "is_json"), [("json", True), ("console", False)])
async def test_in_the_journal_the_ready_line_has_the_form_of_the_log(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, form: str, *, is_json: bool
) -> None:
    status = os.fstat(sys.stdout.fileno())
    monkeypatch.setenv("JOURNAL_STREAM", f"{status.st_dev}:{status.st_ino}")
    configure_logging("info", form)
    services: Any = SimpleNamespace(core=SimpleNamespace(settings=SimpleNamespace(log=SimpleNamespace(format=form))))
    await announce(services, {"http": Address("127.0.0.1", 8080)})
    out, err = capfd.readouterr()
    if is_json:
        entry = json.loads(err)
        assert (out, entry["event"], entry["http"]) == ("", "ready", "127.0.0.1:8080")
    else:
        assert out == "trunkline ready http=127.0.0.1:8080\n"


def test_what_keeps_the_daemon_from_starting_is_json_too(daemon: Daemon) -> None:
    daemon.settings = '[log]\nformat = "json"\n'
    daemon.write_config()
    (daemon.state / "key").unlink()
    done = CliRunner().invoke(main, ["serve", "--config", str(daemon.config)])
    assert done.exit_code == 4
    entries = [json.loads(line) for line in done.stderr.splitlines()]
    assert (entries[-1]["event"], entries[-1]["status"]) == ("not_started", 4)
    assert "missing" in entries[-1]["reason"]


@pytest.mark.sqlite("PostgreSQL keeps its write-ahead log to itself")
def test_a_check_leaves_the_write_ahead_log_of_a_store_that_it_refuses(daemon: Daemon) -> None:
    """After a kill, the last writes are in the log alone."""
    store = daemon.state / "store.sqlite"
    with closing(sqlite3.connect(store)) as db:
        db.execute(
            "INSERT INTO _sqlite_migrations (migration_set, name, applied_at)"
            " VALUES ('trunkline', '9999_of_tomorrow', '2099-01-01')"
        )
        db.commit()
        killed = {path.name: path.read_bytes() for path in daemon.state.iterdir() if path.name.startswith("store")}
    for name, content in killed.items():
        (daemon.state / name).write_bytes(content)
    done = check(daemon)
    assert "a newer version has made this store: 9999_of_tomorrow" in done.stderr
    wal = daemon.state / "store.sqlite-wal"
    assert (store.read_bytes(), wal.read_bytes()) == (killed["store.sqlite"], killed["store.sqlite-wal"])
    assert killed["store.sqlite-wal"]
