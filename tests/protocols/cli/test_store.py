"""`trunkline store salvage` and `compact`: what they say, what they exit with, and when they refuse."""

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from config.settings import Settings
from protocols.cli import main
from protocols.operation.state import open_state
from tests.damaged_pages import damage, leaves
from tests.stores import make_store

pytestmark = pytest.mark.sqlite("the command is for files; test_postgresql_store.py has what it says of a database")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    settings = Settings(state_dir=tmp_path / "state")
    with open_state(settings) as state:
        make_store(state.database)
        with closing(sqlite3.connect(state.database)) as db, db:
            db.executemany(
                "INSERT INTO failed_message (position, device, cts, reason, payload) VALUES (?, 1, 1, 'r', ?)",
                [(n, "x" * 300) for n in range(1, 101)],
            )
    return settings


def run(settings: Settings, command: str) -> Result:
    config = settings.state_dir.parent / "trunkline.toml"
    config.write_text(f'state_dir = "{settings.state_dir}"\n', encoding="utf-8")
    return CliRunner().invoke(main, ["store", command, "--config", str(config)])


def salvaged(settings: Settings) -> Result:
    return run(settings, "salvage")


def test_a_store_without_damage_is_copied(settings: Settings) -> None:
    result = salvaged(settings)
    assert result.exit_code == 0, result.output
    assert "store.salvaged.sqlite is complete. To use it:" in result.output
    assert "nothing can be read" not in result.output
    again = salvaged(settings)
    assert (again.exit_code, "exists already" in again.stderr) == (4, True)


def test_what_is_lost_is_told_and_the_commands_put_the_new_store_in_place(settings: Settings) -> None:
    database = settings.state_dir / "store.sqlite"
    damage(database, leaves(database, "failed_message")[2])
    result = salvaged(settings)
    assert result.exit_code == 1, result.output
    (line,) = (line for line in result.output.splitlines() if line.startswith("failed_message: "))
    kept = int(line.split()[1])
    assert 80 < kept < 100
    first, last = (int(number) for number in line.partition("read in ")[2].split(" to "))
    assert last - first + 1 == 100 - kept
    steps = result.output.splitlines()[-1].strip()
    assert steps == (
        f"mkdir {settings.state_dir}/damaged && mv {database}* {settings.state_dir}/damaged"
        f" && mv {settings.state_dir}/store.salvaged.sqlite {database}"
    )


def test_a_running_daemon_is_left_alone(settings: Settings) -> None:
    with open_state(settings):
        result = salvaged(settings)
    assert result.exit_code == 4
    assert "stop the daemon first" in result.stderr
    assert not (settings.state_dir / "store.salvaged.sqlite").exists()


def test_without_a_store_there_is_nothing_to_salvage(tmp_path: Path) -> None:
    result = salvaged(Settings(state_dir=tmp_path / "state"))
    assert (result.exit_code, "there is no store" in result.stderr) == (4, True)


def test_a_compaction_names_the_room_that_it_needs_and_what_it_got(settings: Settings) -> None:
    before = rows(settings)
    result = run(settings, "compact")
    assert result.exit_code == 0, result.output
    assert re.match(r"6\d MiB are needed on the disk of ", result.stderr.splitlines()[0])
    assert " MiB now; before, " in result.stdout
    assert rows(settings) == before
    with open_state(settings):
        refused = run(settings, "compact")
    assert (refused.exit_code, "stop the daemon first" in refused.stderr) == (4, True)


def rows(settings: Settings) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(settings.state_dir / "store.sqlite")) as db:
        return db.execute("SELECT * FROM failed_message").fetchall()
