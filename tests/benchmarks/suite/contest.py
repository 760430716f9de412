"""Rows of the comparison: who is measured beside whom, in turns, and what comes of it."""

import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from tests.benchmarks.websocket import cpu_seconds, cpu_seconds_of_family, resident_kib
from tests.faults.wear import written

#: From this share of one processor on, the load generator is what limits the rate.
GENERATOR_BOUND: Final = 0.9


class UnavailableError(Exception):
    """A reference cannot be had on this machine; the text says why."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Result of one turn. The rate is in messages or calls a second, or what the name of the row says instead."""

    rate: float
    p99_ms: float | None = None
    cpu_us: float | None = None  # of the server's processes, for each
    resident_mib: float | None = None
    written_bytes: float | None = None  # for each
    generator_share: float = 0.0  # of one processor
    database_us: float | None = None  # processor time of the database's server, for each


Measure = Callable[[float], Sample]  # takes the seconds of a turn
Contender = Callable[[], AbstractContextManager[Measure]]


@dataclass(frozen=True, slots=True)
class Row:
    """One comparison. The first contender is the daemon; ratios are to each of the others."""

    name: str
    contenders: Mapping[str, Contender]
    goal: str = ""
    rounds: int | None = None  # instead of those of the whole comparison


@dataclass(slots=True)
class Outcome:
    row: Row
    samples: dict[str, list[Sample]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)  # contenders with the reason

    def median(self, contender: str) -> float:
        return statistics.median(one.rate for one in self.samples[contender])

    def ratios(self, ours: str, other: str) -> list[float]:
        """Of the turns that followed each other, so that a slow minute counts on both sides."""
        pairs = zip(self.samples[ours], self.samples[other], strict=True)
        return [mine.rate / theirs.rate for mine, theirs in pairs]


@dataclass(slots=True)
class Used:
    """Resources that the processes of a server use during a measurement."""

    processes: Sequence[int]
    database: int | None = None  # the first process of a server of PostgreSQL
    seconds: float = 0.0
    database_seconds: float = 0.0
    written: int = 0
    share: float = 0.0

    def of_each(self, rate: float, count: float, *, p99_ms: float | None = None) -> Sample:
        resident = sum(resident_kib(one) for one in self.processes) / 1024
        each = max(count, 1.0)
        database = None if self.database is None else self.database_seconds / each * 1e6
        return Sample(rate, p99_ms, self.seconds / each * 1e6, resident, self.written / each, self.share, database)


@contextmanager
def using(*processes: int, database: int | None = None) -> Iterator[Used]:
    """`database`: the first process of a server of PostgreSQL, which is counted apart."""
    used = Used(processes, database)
    before = [(cpu_seconds(one), written(one)) for one in processes]
    of_database = 0.0 if database is None else cpu_seconds_of_family(database)
    wall, own = time.perf_counter(), time.process_time()
    yield used
    used.share = (time.process_time() - own) / (time.perf_counter() - wall)
    used.seconds = sum(cpu_seconds(one) for one in processes) - sum(seconds for seconds, _ in before)
    used.written = sum(written(one) for one in processes) - sum(number for _, number in before)
    if database is not None:
        used.database_seconds = cpu_seconds_of_family(database) - of_database


@contextmanager
def running(command: Sequence[str], **options: int) -> Iterator[subprocess.Popen[str]]:
    """A program of a contender, until the block ends."""
    with subprocess.Popen(command, text=True, **options) as process:  # type: ignore[call-overload]
        try:
            yield process
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()


def compete(row: Row, *, rounds: int, seconds: float, told: Callable[[str], None]) -> Outcome:
    """Measure the contenders of a row in turns; the order is turned round after each round.

    A reference that fails is out of the row: the others are measured on. When the daemon fails, everything ends.
    """
    outcome = Outcome(row)
    with ExitStack() as stack:
        ready: dict[str, Measure] = {}
        for name, contender in row.contenders.items():
            try:
                ready[name] = stack.enter_context(contender())
            except UnavailableError as error:
                outcome.missing[name] = str(error)
        for number in range(rounds if row.rounds is None else row.rounds):
            for name in list(ready) if number % 2 == 0 else list(reversed(ready)):
                try:
                    sample = ready[name](seconds)
                except (OSError, UnavailableError, RuntimeError) as error:
                    if name == next(iter(row.contenders)):
                        raise
                    outcome.samples.pop(name, None)
                    outcome.missing[name] = f"in round {number + 1}: {type(error).__name__}: {error}"
                    del ready[name]
                    told(f"{row.name}, round {number + 1}: {name} failed: {error}")
                    continue
                outcome.samples.setdefault(name, []).append(sample)
                told(f"{row.name}, round {number + 1}: {name} {_amount(sample.rate)}")
    return outcome


# The table


_HEADS: Final = ("", "Rate (spread)", "Ratio of ours", "p99 ms", "CPU µs each", "MiB resident", "Bytes written each")


def table(outcomes: Sequence[Outcome]) -> str:
    lines = [f"| {' | '.join(_HEADS)} |", f"|{'---|' * len(_HEADS)}"]
    for outcome in outcomes:
        goal = f" (goal {outcome.row.goal})" if outcome.row.goal else ""
        lines.append(f"| **{outcome.row.name}**{goal} {'| ' * len(_HEADS)}|")
        ours = next(iter(outcome.samples), None)
        lines += [_line(outcome, name, ours) for name in outcome.samples]
        lines += [
            f"| {name} | not measured: {why} {'| ' * (len(_HEADS) - 1)}|" for name, why in outcome.missing.items()
        ]
    return "\n".join(lines)


def _line(outcome: Outcome, name: str, ours: str | None) -> str:
    samples = outcome.samples[name]
    rates = [one.rate for one in samples]
    bound = " generator-bound" if max(one.generator_share for one in samples) >= GENERATOR_BOUND else ""
    ratio = ""
    if ours is not None and name != ours:
        ratios = outcome.ratios(ours, name)
        ratio = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
    cpu = _number(one.cpu_us for one in samples)
    if database := _number(one.database_us for one in samples):
        cpu += f" + {database}"
    cells = (
        name,
        f"{_amount(outcome.median(name))} ({_amount(min(rates))} to {_amount(max(rates))}){bound}",
        ratio,
        _number(one.p99_ms for one in samples),
        cpu,
        _number(one.resident_mib for one in samples),
        _number(one.written_bytes for one in samples),
    )
    return f"| {' | '.join(cells)} |"


def _amount(value: float) -> str:
    return f"{value:,.1f}" if value < 20 and value % 1 else f"{value:,.0f}"


def _number(values: Iterator[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{statistics.median(known):,.1f}" if known else ""
