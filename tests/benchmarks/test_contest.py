"""The comparison: contenders take turns, and the table says what is missing and what limited the rate."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.benchmarks.suite.contest import Contender, Measure, Row, Sample, UnavailableError, compete, table
from tests.benchmarks.websocket import cpu_seconds_of_family


def fixed(name: str, turns: list[str], *samples: Sample | Exception) -> Contender:
    left = list(samples)

    @contextmanager
    def contender() -> Iterator[Measure]:
        def measure(_seconds: float) -> Sample:
            turns.append(name)
            if isinstance(sample := left.pop(0), Exception):
                raise sample
            return sample

        yield measure

    return contender


@contextmanager
def absent() -> Iterator[Measure]:
    raise UnavailableError("node is not installed")
    yield


def test_they_take_turns_and_ratios_are_of_each_turn() -> None:
    turns: list[str] = []
    row = Row(
        "MQTT",
        {
            "ours": fixed(
                "ours", turns, Sample(100, 5, 10, 20, 30), Sample(10, 7, 10, 20, 30), Sample(90, 6, 10, 20, 30)
            ),
            "theirs": fixed("theirs", turns, Sample(200), Sample(10), Sample(100, generator_share=0.95)),
            "aedes": absent,
        },
        "0.9 of theirs",
    )
    told: list[str] = []
    text = table([compete(row, rounds=3, seconds=1, told=told.append)])
    assert turns == ["ours", "theirs", "theirs", "ours", "ours", "theirs"]
    assert len(told) == 6
    assert text.splitlines()[2:] == [
        "| **MQTT** (goal 0.9 of theirs) | | | | | | | |",
        "| ours | 90 (10 to 100) |  | 6.0 | 10.0 | 20.0 | 30.0 |",
        "| theirs | 100 (10 to 200) generator-bound | 0.90 (0.50 to 1.00) |  |  |  |  |",
        "| aedes | not measured: node is not installed | | | | | | |",
    ]


def test_the_processor_time_of_a_database_is_apart() -> None:
    contenders = {"over PostgreSQL": fixed("over PostgreSQL", [], Sample(100, cpu_us=8.25, database_us=3.5))}
    text = table([compete(Row("MQTT", contenders), rounds=1, seconds=1, told=list[str]().append)])
    assert text.splitlines()[3:] == ["| over PostgreSQL | 100 (100 to 100) |  |  | 8.2 + 3.5 |  |  |"]


def test_processor_time_of_children_counts_also_when_they_have_ended() -> None:
    work = "import time\nwhile time.process_time() < 0.2: pass"  # the system counts hundredths of each process
    before = cpu_seconds_of_family(os.getpid())
    subprocess.run([sys.executable, "-c", work], check=True)
    assert cpu_seconds_of_family(os.getpid()) - before >= 0.1


def test_a_reference_that_fails_is_out_of_its_row_and_the_others_are_measured_on() -> None:
    turns: list[str] = []
    contenders = {
        "ours": fixed("ours", turns, Sample(100), Sample(120)),
        "nats": fixed("nats", turns, Sample(5), TimeoutError("timed out")),
        "aedes": fixed("aedes", turns, Sample(50), Sample(60)),
    }
    text = table([compete(Row("MQTT", contenders), rounds=2, seconds=1, told=list[str]().append)])
    assert turns == ["ours", "nats", "aedes", "aedes", "nats", "ours"]
    assert text.splitlines()[3:] == [
        "| ours | 110 (100 to 120) |  |  |  |  |  |",
        "| aedes | 55 (50 to 60) | 2.00 (2.00 to 2.00) |  |  |  |  |",
        "| nats | not measured: in round 2: TimeoutError: timed out | | | | | | |",
    ]


def test_when_the_daemon_fails_the_comparison_ends() -> None:
    row = Row("MQTT", {"ours": fixed("ours", [], TimeoutError("timed out")), "theirs": fixed("theirs", [], Sample(5))})
    with pytest.raises(TimeoutError):
        compete(row, rounds=1, seconds=1, told=list[str]().append)
