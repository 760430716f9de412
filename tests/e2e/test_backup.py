"""Backup and restore with the real daemon: what was acknowledged before a backup began is in it (reference 27.9)."""

import threading
from pathlib import Path

import httpx
import pytest

from tests.daemon import Daemon, run_command, running_daemon
from tests.e2e.test_kill import CountingDevice, stored_counts
from tests.postgresql import ENGINE

pytestmark = pytest.mark.both_engines


CLIENTS = 2
ACKNOWLEDGED_BEFORE = 300


def signing_keys(daemon: Daemon) -> list[dict[str, str]]:
    """The public keys of ID tokens."""
    address = daemon.base_url.replace("/v1.1", "/accounts/jwks.json")
    (key,) = httpx.get(address).raise_for_status().json()["keys"]
    return [key]


@pytest.mark.processes
def test_a_backup_under_ingest_has_every_message_that_was_acknowledged_before(tmp_path: Path) -> None:
    file = tmp_path / "backup.tar.gz"
    with running_daemon(tmp_path / "first", devices=CLIENTS) as daemon:
        enough = threading.Semaphore(0)
        clients = [CountingDevice(daemon.port("mqtt"), number, 0, enough) for number in range(CLIENTS)]
        for client in clients:
            client.start()
        for _ in range(ACKNOWLEDGED_BEFORE):
            assert enough.acquire(timeout=30)
        acknowledged = [client.acknowledged for client in clients]
        keys = signing_keys(daemon)
        made = run_command("backup", file, "--config", daemon.config)
        assert made.returncode == 0, made.stderr
        sent = [client.sent for client in clients]
        refused = run_command("restore", file, "--config", daemon.config)
        assert (refused.returncode, refused.stdout) == (4, "")
        assert "a restore never touches a running daemon; stop it first" in refused.stderr
        for _ in range(ACKNOWLEDGED_BEFORE):  # the daemon goes on storing
            assert enough.acquire(timeout=30)
        noted = run_command("audit", "--event", "command", "--config", daemon.config).stdout
        assert f"file {file}" in noted
        assert "command=backup" in noted
        daemon.kill()
    other = Daemon(tmp_path / "second" / "state")
    other.state.parent.mkdir()
    other.write_config()
    restored = run_command("restore", file, "--config", other.config)
    assert restored.returncode == 0, restored.stderr
    other.start()
    try:
        assert signing_keys(other) == keys, "sign-ins of other programs go on"
        for number in range(CLIENTS):
            stored = stored_counts(other, number)
            assert set(range(1, acknowledged[number] + 1)) <= stored.keys(), "acknowledged and lost"
            assert stored.keys() <= set(range(1, sent[number] + 1)), "of after the backup"
            assert max(stored.values()) == 1, "stored twice"
    finally:
        assert other.stop() == 0
    again = run_command("restore", file, "--config", other.config)
    assert again.returncode == 4
    refusal = "exists already, and a restore overwrites nothing" if ENGINE == "sqlite" else "has a store already"
    assert refusal in again.stderr
    assert "command=restore" in run_command("audit", "--event", "command", "--config", other.config).stdout
