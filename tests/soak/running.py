"""A soak from the start of its daemon to the comparison of what was acknowledged with what is stored."""

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.daemon import Daemon
from tests.soak.load import SETTINGS, Load, provision, stored
from tests.soak.watching import BOUNDS, Samples, unexplained

#: The clock leaps ahead in the middle, and back later.
_LEAP_SECONDS: Final = 3600
_AHEAD: Final = (0.45, 0.65)
#: When objects are counted: after the first quarter, and before the end.
_COUNTED: Final = (0.3, 0.95)
_MOST_TYPES: Final = 12
_DISK_OF_A_MESSAGE: Final = 2_048.0  # bytes, with its index entries, notifications and exports


class Soak:
    def __init__(self, folder: Path, *, pause: float, often: float, every: float) -> None:
        """
        Args:
            folder: an empty folder.
            pause: of each device between two messages, in seconds.
            often: see `Load`.
            every: seconds between two samples.
        """
        self._folder, self._every = folder, every
        self._log = folder / "daemon.log"
        self._log.touch()
        self._daemon = Daemon(folder / "state", SETTINGS.format(rate=1_000_000))
        self._pause, self._often = pause, often
        self._clock, self._objects = folder / "clock", folder / "objects"
        self.lost: int | None = None
        self.twice = 0

    def run(self, seconds: float) -> None:
        provision(self._daemon)
        with self._log.open("a", encoding="utf-8") as log:
            self._daemon.log = log
            with self._variables():
                self._daemon.start()
            try:
                self.load = Load(self._daemon, self._pause, self._often)
                self.samples = Samples(self._daemon)
                with self.load.running():
                    self._watch(seconds)
                self.load.wait_received()
            except Exception as error:
                ended = None if self._daemon.process is None else self._daemon.process.poll()
                last = "".join(self._log.read_text(encoding="utf-8").splitlines(keepends=True)[-20:])
                error.add_note(f"The daemon's exit status is {ended}. Its log ends with:\n{last}")
                raise
            finally:
                self.status = self._daemon.stop()
        self._compare()

    @contextmanager
    def _variables(self) -> Iterator[None]:
        """Variables of the daemon's process, while it starts."""
        before = dict(os.environ)
        os.environ |= {
            "PYTHONPATH": str(Path(__file__).parent / "hook"),
            "SOAK_CLOCK": str(self._clock),
            "SOAK_OBJECTS": str(self._objects),
            "TRUNKLINE_LIMITS_QUOTAS": "on",
        }
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)

    def _leap(self, ahead_seconds: int) -> None:
        with self.load.subscribing:
            self._clock.write_text(str(ahead_seconds), encoding="ascii")
            self._signal(signal.SIGUSR1)

    def _signal(self, number: int) -> None:
        assert self._daemon.process is not None
        self._daemon.process.send_signal(number)

    def _watch(self, seconds: float) -> None:
        began = time.monotonic()
        moments: list[tuple[float, Callable[[], None]]] = [
            (_AHEAD[0], lambda: self._leap(_LEAP_SECONDS)),
            (_AHEAD[1], lambda: self._leap(0)),
            *((share, lambda: self._signal(signal.SIGUSR2)) for share in _COUNTED),
        ]
        moments.sort(key=lambda moment: moment[0])
        while (now := time.monotonic() - began) < seconds:
            while moments and moments[0][0] * seconds <= now:
                moments.pop(0)[1]()
            self.samples.take()
            time.sleep(self._every)
        for _, act in moments:  # a sample took long
            act()

    def _compare(self) -> None:
        found = stored(self._daemon)
        self.lost = sum(len(numbers - found[device].keys()) for device, numbers in self.load.acknowledged.items())
        self.twice = sum(count > 1 for counts in found.values() for count in counts.values())

    # --- What came of it ---------------------------------------------------------------------------------------------

    def problems(self) -> list[str]:
        """Each reason for which the soak has failed."""
        load, samples = self.load, self.samples
        # SQLite's page caches have bounds of their own, and fill as the store grows.
        caches = self._cache_mib()
        rises = [
            (bound, samples.rise(bound.measure) - (caches if bound.measure == "memory" else 0.0)) for bound in BOUNDS
        ]
        lines, _ = unexplained(self._log.read_text(encoding="utf-8"))
        found = [
            *load.failures,
            *(f"{name} was never done" for name in load.activities if not load.done[name]),
            *(
                f"{bound.measure} grew by {rise:.1f} {bound.unit}, more than {bound.rise:g}"
                for bound, rise in rises
                if rise > bound.rise
            ),
            *(f"not explained: {line}" for line in lines),
        ]
        if (each := self._bytes_of_a_message()) > _DISK_OF_A_MESSAGE:
            found.append(f"the disk grew by {each:.0f} bytes for each message")
        if self.lost or self.twice:
            found.append(f"{self.lost} acknowledged messages are not stored, {self.twice} are stored twice")
        if self.status:
            found.append(f"the daemon ended with status {self.status}")
        return found

    def report(self) -> list[str]:
        """A table in Markdown, and what was wrong."""
        samples, load = self.samples, self.load
        rows = ["| Measure | First | Mean | Last | Rise | Bound |", "|---|---|---|---|---|---|"]
        for bound in BOUNDS:
            values = samples.measured[bound.measure]
            shown = (values[0], samples.mean(bound.measure), values[-1], samples.rise(bound.measure))
            unit = f" {bound.unit}" if bound.unit else ""
            rows.append(
                f"| {bound.measure} | {' | '.join(f'{one:.1f}{unit}' for one in shown)} | {bound.rise:g}{unit} |"
            )
        acknowledged = sum(map(len, load.acknowledged.values()))
        processor = samples.gained("processor") / (samples.seconds[-1] * 0.75)
        summary = (
            f"{samples.seconds[-1] / 60:.1f} minutes, {acknowledged:,} acknowledged, {self.lost} lost,"
            f" {self.twice} stored twice; {processor:.0%} of a processor;"
            f" {self._bytes_of_a_message():.0f} bytes of disk for each message;"
            f" resident {samples.measured['resident'][-1]:.0f} MiB"
        )
        memory = samples.measured["memory"]
        tenths = (memory[min(len(memory) - 1, len(memory) * tenth // 10)] for tenth in range(11))
        return [
            summary,
            "done: " + ", ".join(f"{name} {load.done[name]}" for name in load.activities),
            f"lines above info: {dict(unexplained(self._log.read_text(encoding='utf-8'))[1])}",
            "",
            *rows,
            "",
            f"memory at each tenth, MiB: {', '.join(f'{one:.1f}' for one in tenths)}",
            *self._grown(),
            *(f"WRONG: {problem}" for problem in self.problems()),
        ]

    def _bytes_of_a_message(self) -> float:
        return self.samples.gained("disk") * 1024**2 / max(self.samples.gained("messages"), 1)

    def _counts(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._objects.read_text(encoding="utf-8").splitlines()]

    def _cache_mib(self) -> float:
        """By how much SQLite's memory grew between the counts."""
        first, *_, last = self._counts()
        return max(0.0, (int(last["sqlite"]) - int(first["sqlite"])) / 1024**2)

    def _grown(self) -> list[str]:
        """What there is more of at the end, by type, and how much memory its parts hold."""
        first, *_, last = self._counts()
        more = Counter(last["types"])
        more.subtract(first["types"])
        types = ", ".join(f"{name} {number:+,}" for name, number in more.most_common(_MOST_TYPES) if number > 0)
        mib = ((name, (last["malloc"][name] - first["malloc"][name]) / 1024**2) for name in last["malloc"])
        malloc = ", ".join(f"{name} {size:+.1f} MiB" for name, size in mib)
        return [
            f"objects at {_COUNTED[1]:.0%} of the time, beside those at {_COUNTED[0]:.0%}: {types}",
            f"SQLite, of the rise of the memory: {self._cache_mib():+.1f} MiB",
            f"small blocks of Python: {first['blocks']:,}, then {last['blocks']:,}; malloc: {malloc}",
        ]
