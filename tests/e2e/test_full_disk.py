"""On a disk that is really full: what was not stored is not acknowledged, deleting works, and all goes on with room."""

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.daemon import USER_TOKEN, device_id, device_token, running_daemon

MIB = 1024 * 1024
AGAIN_SECONDS = 5


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=40m", "none", folder], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("mount: needs the right to mount a file system")
    yield folder
    subprocess.run(["umount", folder], check=True)


def fill(disk: Path) -> Path:
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        for piece in (b"0" * MIB, b"0" * 4096):
            try:
                while True:
                    file.write(piece)
            except OSError:
                continue
    assert os.statvfs(disk).f_bavail == 0
    return filler


@pytest.mark.sqlite("the disk is that of the file; tests/faults fills that of a server")
def test_a_full_disk(small_disk: Path) -> None:
    with (
        running_daemon(small_disk, devices=3) as daemon,
        httpx.Client(base_url=daemon.base_url, timeout=20) as client,
    ):
        user = {"Authorization": f"bearer {USER_TOKEN}"}

        def send() -> int:
            headers = {"Authorization": f"bearer {device_token(0)}"}
            return client.post("/messages", headers=headers, json={"data": {"intensity": 1}}).status_code

        assert send() == 200
        filler = fill(small_disk)
        while send() == 200:  # what the write-ahead log has room for
            pass
        assert send() == 503
        refused = client.post(
            "/messages", headers={"Authorization": f"bearer {device_token(0)}"}, json={"data": {"intensity": 1}}
        )
        assert (refused.json()["error"]["reason"], refused.headers["retry-after"]) == ("the disk is full", "5")
        for number in (1, 2):
            assert client.delete(f"/devices/{device_id(number)}", headers=user).status_code == 200
            assert client.get(f"/devices/{device_id(number)}", headers=user).status_code == 404
        filler.unlink()
        began = time.monotonic()
        while send() != 200:
            assert time.monotonic() - began < AGAIN_SECONDS
        assert (daemon.state / "ballast").stat().st_blocks * 512 >= 8 * MIB
