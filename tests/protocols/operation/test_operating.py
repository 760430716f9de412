"""State of the daemon for the operator's page (reference 27.21)."""

import tarfile
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest

from broker.core import Core
from broker.operating.port import BackupFailedError
from broker.services import Services
from config.settings import Address, Settings
from protocols.metrics.vitals import Vitals
from protocols.operation.backup import MIB
from protocols.operation.operating import DaemonMachine
from protocols.operation.state import open_state
from tests.stores import begin_store, storage_of

pytestmark = pytest.mark.slow


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[Settings]:
    settings = Settings(state_dir=tmp_path / "state", storage=storage_of(tmp_path / "state"))
    with open_state(settings):
        begin_store(settings)
        yield settings


def machine_of(core: Core, settings: Settings) -> DaemonMachine:
    return DaemonMachine(settings, Vitals(core), {"http": Address("127.0.0.1", 8080)})


async def test_backups_are_made_listed_and_the_oldest_removed(
    services: Services, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("protocols.operation.operating._BYTES_A_SECOND", 1_000 * MIB)
    machine, folder = machine_of(services.core, settings), tmp_path / "backups"
    assert await machine.backups(folder) == []
    (tmp_path / "backups").mkdir()
    (folder / "notes.txt").write_text("kept", encoding="utf-8")
    told: list[tuple[int, int]] = []
    made: list[Path] = []
    for _ in range(3):  # each with a total of its own: a server of PostgreSQL may grow in between
        told.clear()
        made.append(await machine.back_up(folder, keep=2, copied=lambda *more: told.append(more)))
        _, total = told[-1]
        assert sum(more for more, _ in told) >= total
    assert [name for name, _, _ in await machine.backups(folder)] == [made[2].name, made[1].name]
    assert (folder / "notes.txt").exists()
    with tarfile.open(made[2]) as archive:
        assert "store.sqlite" in archive.getnames()


async def test_the_room_for_backups_is_that_of_their_folder_or_of_the_one_above(
    services: Services, settings: Settings, tmp_path: Path
) -> None:
    machine = machine_of(services.core, settings)
    (tmp_path / "file").write_text("no folder", encoding="utf-8")
    for folder in (tmp_path, tmp_path / "not" / "yet", tmp_path / "file" / "below"):
        assert await machine.available(folder) > 0


async def test_a_backup_ends_with_the_daemon_and_leaves_nothing(
    services: Services, settings: Settings, tmp_path: Path
) -> None:
    stopped = Event()
    stopped.set()
    with pytest.raises(BackupFailedError, match="stopped"):
        machine_of(services.core, settings)._back_up(tmp_path / "backups", 1, lambda _more, _total: None, stopped)
    assert list((tmp_path / "backups").iterdir()) == []


async def test_a_backup_that_cannot_be_written_says_why(services: Services, settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(BackupFailedError, match="file"):
        await machine_of(services.core, settings).back_up(tmp_path / "file" / "x", keep=1, copied=lambda *_: None)


async def test_the_doctor_looks_and_the_listeners_are_named(services: Services, settings: Settings) -> None:
    machine = machine_of(services.core, settings)
    found = {one.check: one.ok for one in await machine.examine()}
    assert found["store"]
    assert found["disk"]
    assert [(one.name, one.address, one.problem) for one in machine.listeners()] == [("http", "127.0.0.1:8080", "")]
    room = await machine.room()
    assert (room.grows, room.full_in_days) == (None, None)
    assert "free pages" in [part.name for part in room.parts]
    assert sum(part.size for part in room.parts) == pytest.approx(room.store, rel=0.05)
    assert room.available > 0
