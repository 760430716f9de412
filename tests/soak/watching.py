"""What the daemon takes while time goes on: samples, their slopes, and the lines of its log."""

import json
import re
import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import httpx

from tests.daemon import Daemon
from tests.postgresql import ENGINE
from tests.soak.load import folder_bytes

#: Lines above info that a soak may bring about, by event: why.
EXPLAINED: Final[Mapping[str, str]] = {}
_METRIC: Final = re.compile(r"^(\w+)(?:\{.*\})? (\S+)$", re.MULTILINE)
_LOG: Final = "store.sqlite-wal"
#: Of the metrics of the daemon: what waits to be done.
_LAGS: Final = {
    "trunkline_store_waiting_rows": "rows for the writer",
    "trunkline_projection_held_rows": "rows for snapshots",
    "trunkline_rule_waiting_messages": "rows for rules",
    "trunkline_subscription_backlog": "rows for subscriptions",
    "trunkline_notifications_pending": "notifications",
    "trunkline_audit_waiting_entries": "audit entries",
}


@dataclass(frozen=True, slots=True)
class Bound:
    """How much the fitted line of a measure may rise from the end of the first quarter to the end."""

    measure: str
    unit: str
    rise: float


#: The first minutes fill caches, the writer's page cache of 64 MiB among them, so a short soak bounds little. An hour
#: with these bounds is 21 KiB a minute for each MiB.
BOUNDS: Final = (
    Bound("memory", "MiB", 24),
    Bound("descriptors", "", 12),
    Bound("threads", "", 4),
    Bound("tasks", "", 24),
    Bound("WAL", "MiB", 24),
    *(Bound(name, "", 400) for name in _LAGS.values()),
)


@dataclass
class Samples:
    """Measures by name, each a list with one value for each moment."""

    daemon: Daemon
    seconds: list[float] = field(default_factory=list)
    measured: dict[str, list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert self.daemon.process is not None
        self._process = Path(f"/proc/{self.daemon.process.pid}")
        self._began = time.monotonic()
        host, port = self.daemon.host_port("http")
        self._http = httpx.Client(base_url=f"http://{host}:{port}", timeout=60)

    def take(self) -> None:
        metrics = {name: float(value) for name, value in _METRIC.findall(self._http.get("/metrics").text)}
        memory = _fields(self._process / "smaps_rollup")
        found = {
            "memory": memory["Anonymous"] / 1024,
            "resident": memory["Rss"] / 1024,
            "descriptors": len(list((self._process / "fd").iterdir())),
            "threads": _fields(self._process / "status")["Threads"],
            "tasks": metrics["trunkline_loop_tasks"],
            "disk": (folder_bytes(self.daemon.state) - (log := _size(self.daemon.state / _LOG))) / 1024**2,
            "WAL": log / 1024**2,
            "messages": metrics["trunkline_messages_total"],
            "processor": metrics["process_cpu_seconds_total"],
            **{name: metrics[metric] for metric, name in _LAGS.items()},
        }
        if ENGINE == "postgresql":
            with self.daemon.store(read_only=True) as connection:
                row = connection.execute("SELECT pg_database_size(current_database())").tuples()
                found["disk"] += next(iter(row))[0] / 1024**2
        self.seconds.append(time.monotonic() - self._began)
        for name, value in found.items():
            self.measured.setdefault(name, []).append(value)

    def rise(self, measure: str) -> float:
        """How far the fitted line of a measure rises from the end of the first quarter to the end."""
        seconds, values = self._later(measure)
        return statistics.linear_regression(seconds, values).slope * (seconds[-1] - seconds[0])

    def mean(self, measure: str) -> float:
        return statistics.fmean(self._later(measure)[1])

    def gained(self, measure: str) -> float:
        """Of a measure that only grows: by how much, behind the first quarter."""
        values = self._later(measure)[1]
        return values[-1] - values[0]

    def _later(self, measure: str) -> tuple[Sequence[float], Sequence[float]]:
        first = next(number for number, at in enumerate(self.seconds) if at >= self.seconds[-1] / 4)
        return self.seconds[first:], self.measured[measure][first:]


def _fields(path: Path) -> dict[str, int]:
    """Numbers of a file of /proc with a name and a number in each line."""
    return {name: int(value) for name, value in re.findall(r"^(\w+):\s+([0-9]+)", path.read_text(), re.MULTILINE)}


def _size(path: Path) -> int:
    try:
        return path.stat().st_blocks * 512
    except OSError:  # over PostgreSQL there is none
        return 0


def unexplained(log: str) -> tuple[list[str], Counter[str]]:
    """The lines of a log above info that nobody has explained, and how often each event came that is explained."""
    lines, known = [], Counter[str]()
    for line in filter(None, log.splitlines()):
        try:
            entry = json.loads(line)
        except ValueError:
            entry = {"level": "not JSON"}
        if entry.get("level") in {"debug", "info"}:
            continue
        if (event := entry.get("event", "")) in EXPLAINED:
            known[event] += 1
        else:
            lines.append(line)
    return lines, known
