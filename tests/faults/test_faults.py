"""A short form of `python -m tests.faults`: what was acknowledged is stored once, whatever the machine does."""

import errno
import random
import shutil
from pathlib import Path

import pytest

from tests.faults import machine
from tests.faults.sqlite import SqliteWorld, each_call, power_cuts
from tests.postgresql import server
from tests.properties import in_ci

pytestmark = pytest.mark.processes

CHANCE = random.Random(20_260_202)  # noqa: S311 - the moments are random, and the same in every run


@pytest.mark.sqlite("the disk is that of the file")
def test_nothing_acknowledged_is_lost_by_power_cuts(tmp_path: Path) -> None:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler: the file-system shim cannot be built")
    row = power_cuts(SqliteWorld(tmp_path, CHANCE), 20, messages=200)
    assert row.acknowledged >= 200
    assert (row.lost, row.twice) == (0, 0)


@in_ci
@pytest.mark.sqlite("the disk is that of the file")
def test_nothing_acknowledged_is_lost_when_one_write_or_sync_after_the_other_fails(tmp_path: Path) -> None:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler: the file-system shim cannot be built")
    row = each_call(SqliteWorld(tmp_path, CHANCE), 4, calls="ws", error=errno.EIO, fault="", seen="")
    assert row.acknowledged > 20
    assert row.refused > 0
    assert (row.lost, row.twice) == (0, 0)


@pytest.mark.sqlite("it looks into the file; the next test kills the daemon over PostgreSQL")
def test_nothing_acknowledged_is_lost_by_kills_on_any_protocol(tmp_path: Path) -> None:
    row = machine.directly("", "", machine.kill, most=60)(SqliteWorld(tmp_path, CHANCE), 1)
    assert row.acknowledged > 20
    assert (row.lost, row.twice) == (0, 0)


@in_ci
def test_nothing_acknowledged_is_lost_or_stored_twice_by_cuts_and_kills_over_postgresql(tmp_path: Path) -> None:
    """Connections that are cut in the middle of commits, sessions that the server ends, and a killed daemon."""
    shared = server()
    from tests.faults.postgresql import PostgresWorld, short

    world = PostgresWorld(tmp_path, shared, CHANCE, database=shared.new_database(), patience=30)
    world.provision()
    row = short(world)
    assert row.acknowledged > 20
    assert (row.lost, row.twice, row.refused) == (0, 0, 0)
    shared.drop(world.database)
