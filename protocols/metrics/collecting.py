"""Puts every statistic of the daemon into the words of Prometheus."""

import os
import resource
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import trio
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from config.build import VERSION, commit
from protocols.exposition import exposition_form
from protocols.metrics.table import BROKER, DAEMON, LISTENERS, Part
from protocols.metrics.vitals import Vitals
from storage.durations import BOUNDS, Durations

_PREFIX: Final = "trunkline_"
_STARTED: Final = time.time()
_DESCRIPTORS: Final = Path("/proc/self/fd")
_MEMORY: Final = Path("/proc/self/statm")

Family = CounterMetricFamily | GaugeMetricFamily


class Exposition:
    """The answers of /metrics."""

    def __init__(self, vitals: Vitals) -> None:
        self._state_dir = vitals.core.settings.state_dir
        self._everything = _Everything(vitals)
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self._everything)

    async def text(self, accepted: str) -> tuple[bytes, str]:
        """All metrics in the form that an Accept header asks for, and the type of the content."""
        # A file system may keep its callers waiting.
        self._everything.available_bytes = await trio.to_thread.run_sync(_available_bytes, self._state_dir)
        encode, content_type = exposition_form(accepted)
        return encode(self._registry), content_type


def _available_bytes(folder: Path) -> int | None:
    try:
        found = os.statvfs(folder)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize


class _Everything(Collector):
    def __init__(self, vitals: Vitals) -> None:
        self._vitals = vitals
        self.available_bytes: int | None = None

    def collect(self) -> Iterable[Metric]:
        vitals = self._vitals
        families: dict[str, Family] = {}
        for name, statistics in vitals.core.life.statistics().items():
            _add_part(families, BROKER.get(name) or DAEMON.get(name, {}), statistics, {})
        for name, read in tuple(vitals.counters.items()):
            listener, part = LISTENERS.get(name, ("", {}))
            _add_part(families, part, read(), {"listener": listener} if listener else {})
        yield from families.values()
        refusals = CounterMetricFamily(
            f"{_PREFIX}refusals", "What was refused, by event in the log and by listener.", labels=("event", "listener")
        )
        for (event, listener), times in vitals.core.refusals.by_listener().items():
            refusals.add_metric((event, listener), times)
        yield refusals
        commits = HistogramMetricFamily(f"{_PREFIX}store_commit_duration_seconds", "How long commits took.")
        _add_histogram(commits, (), vitals.core.database.commit_durations)
        yield commits
        yield from _requests(vitals)
        if self.available_bytes is not None:
            help_ = "Free bytes on the disk of state_dir."
            yield GaugeMetricFamily(f"{_PREFIX}disk_available_bytes", help_, value=self.available_bytes)
        settings = vitals.core.settings
        store = GaugeMetricFamily(
            f"{_PREFIX}store_info", "Engine of the store and name of the node, as labels.", labels=("engine", "node")
        )
        engine, node = ("postgresql", settings.cluster.name) if settings.storage.is_postgresql else ("sqlite", "")
        store.add_metric((engine, node), 1)
        yield store
        build = GaugeMetricFamily(
            f"{_PREFIX}build_info", "Version and commit, as labels.", labels=("version", "commit")
        )
        build.add_metric((VERSION, commit()), 1)
        yield build
        yield from _process()


def _requests(vitals: Vitals) -> Iterator[Metric]:
    durations = HistogramMetricFamily(
        f"{_PREFIX}http_request_duration_seconds",
        "From the head of a request to the head of its answer.",
        labels=("listener",),
    )
    responses = CounterMetricFamily(
        f"{_PREFIX}http_responses", "Answers to HTTP requests, by status.", labels=("listener", "code")
    )
    for listener, traffic in sorted(vitals.traffic.items()):
        _add_histogram(durations, (listener,), traffic.durations)
        for status, times in sorted(traffic.statuses.items()):
            responses.add_metric((listener, str(status)), times)
    yield durations
    yield responses


def _process() -> Iterator[Metric]:
    """Metrics of the process. prometheus_client's collector finds none if /proc has only processes (ProcSubset=pid)."""
    yield CounterMetricFamily("process_cpu_seconds", "Processor time of the daemon.", value=time.process_time())
    yield GaugeMetricFamily("process_start_time_seconds", "When the daemon started, since the epoch.", value=_STARTED)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    yield GaugeMetricFamily("process_max_fds", "How many descriptors the daemon may have.", value=limit)
    try:
        open_now = len(os.listdir(_DESCRIPTORS)) - 1  # noqa: PTH208 - without a Path for each; one is of this listing
        pages = int(_MEMORY.read_text(encoding="ascii").split()[1])
    except OSError:
        return
    yield GaugeMetricFamily("process_open_fds", "Open descriptors of the daemon.", value=open_now)
    resident = pages * resource.getpagesize()
    yield GaugeMetricFamily("process_resident_memory_bytes", "Memory of the daemon.", value=resident)


def statistics_members(statistics: object) -> Mapping[str, Any]:
    """The statistics of a part by name, as `trunkline statistics` shows them."""
    if isinstance(statistics, Mapping):
        return statistics
    if not isinstance(statistics, msgspec.Struct):
        return {}
    return {name: getattr(statistics, name) for name in statistics.__struct_fields__}


def _add_part(families: dict[str, Family], part: Part, statistics: object, labels: Mapping[str, str]) -> None:
    for name, value in statistics_members(statistics).items():
        metric = part.get(name)
        if metric is None:
            continue
        all_labels = {**labels, **metric.labels}
        family = families.get(metric.name)
        if family is None:
            kind = CounterMetricFamily if metric.is_counter else GaugeMetricFamily
            family = families[metric.name] = kind(_PREFIX + metric.name, metric.help, labels=tuple(all_labels))
        number = len(value) if isinstance(value, tuple) else float(value)
        family.add_metric(tuple(all_labels.values()), number * metric.scale)


def _add_histogram(family: HistogramMetricFamily, labels: tuple[str, ...], durations: Durations) -> None:
    so_far, buckets = 0, []
    for bound, count in zip((*map(str, BOUNDS), "+Inf"), durations.counts, strict=True):
        so_far += count
        buckets.append((bound, so_far))
    family.add_metric(labels, buckets, durations.seconds)
