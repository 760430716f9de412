"""Aggregates, histogram and presence (reference 9.5): exact at any position of the projections and after restarts."""

import json
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import product
from math import isclose
from pathlib import Path
from typing import Any
from unittest.mock import patch
from zoneinfo import ZoneInfo

import numpy as np
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.devices.registry import Device
from broker.errors import ValidationFailed
from broker.messages import folds, projections
from broker.messages.aggregates import Aggregate
from broker.messages.intervals import DAY_MS, HOUR_MS, LAST_MS, MINUTE_MS, YEAR_MS, Interval
from broker.messages.projections import Projector
from broker.services import Services
from config.settings import Settings, Storage
from storage.keys import DeviceKey, Milliseconds
from tests.builders import ServicesOpener
from tests.factories import NOW_MS, build_world
from tests.fakes import FakeClock
from tests.properties import examples
from tests.rows import each_row
from tests.stores import MigratedEngine
from tests.wording import INVALID

pytestmark = pytest.mark.slow


LONGEST = {
    Interval.MINUTE: HOUR_MS,
    Interval.TEN_MINUTES: DAY_MS,
    Interval.HOUR: DAY_MS,
    Interval.DAY: 31 * DAY_MS,
    Interval.MONTH: YEAR_MS,
    Interval.YEAR: YEAR_MS,
}


async def send(services: Services, device: Device, data: Mapping[str, object], ts: int | None = None) -> int:
    position = services.messages.ingest.submit(device, json.dumps(data).encode(), ts)
    await services.messages.ingest.wait_committed()
    return position


def findings(error: pytest.ExceptionInfo[ValidationFailed]) -> list[tuple[str, str]]:
    return [(finding.field, *finding.messages) for finding in error.value.findings]  # type: ignore[misc]


# Time zones


async def test_local_buckets_have_what_the_local_calendar_puts_there(
    services: Services, kitchen: Device, fake_clock: FakeClock
) -> None:
    """Messages every 97 minutes while the clocks of all these zones change; a part of them is still in memory."""
    fake_clock.now = round(datetime(2026, 12, 1, tzinfo=UTC).timestamp() * 1000)
    first, last = (round(datetime(2026, *day, tzinfo=UTC).timestamp() * 1000) for day in ((9, 28), (11, 5)))
    sent = list(enumerate(range(first, last, 97 * MINUTE_MS)))
    for number, ts in sent:
        services.messages.ingest.submit(kitchen, b'{"intensity":%d}' % number, ts)
        if number == len(sent) // 2:
            await services.messages.ingest.wait_committed()
            await services.messages.projector.flush()
    await services.messages.ingest.wait_committed()
    analytics, shown = services.messages.analytics, {Interval.HOUR: 13, Interval.DAY: 10, Interval.MONTH: 7}
    for zone in ("Europe/Paris", "America/Los_Angeles", "Asia/Kolkata", "Australia/Lord_Howe", "America/Havana"):
        there = ZoneInfo(zone)
        for interval, days in product(
            (Interval.HOUR, Interval.DAY, Interval.MONTH, Interval.YEAR), ((10, 4), (10, 25))
        ):
            begin = datetime(2026, *days, tzinfo=there)
            if interval is Interval.MONTH or interval is Interval.YEAR:
                begin = datetime(2026, 1, 1, tzinfo=there)
            end = {Interval.HOUR: begin + timedelta(days=1), Interval.DAY: begin + timedelta(days=9)}.get(
                interval, datetime(2027, 1, 1, tzinfo=there)
            )
            start_ms, end_ms = (Milliseconds(round(one.timestamp()) * 1000) for one in (begin, end))
            expected: dict[str, list[int]] = defaultdict(list)
            for number, ts in sent:
                if start_ms <= ts < end_ms:
                    local = datetime.fromtimestamp(ts / 1000, there)
                    offset = str(local.utcoffset()) if interval is Interval.HOUR else ""
                    expected[local.isoformat()[: shown.get(interval, 4)] + offset].append(number)
            times: dict[str, Any] = {"start_ms": start_ms, "end_ms": end_ms, "zone": there}
            found = await analytics.histogram(kitchen, "intensity", interval, **times)
            summed = [(one.count, one.sum) for _, one in found.buckets]
            assert summed == [(len(one), sum(one)) for one in expected.values()], (zone, interval, begin)
            present = await analytics.presence([kitchen], interval, field=None, **times)
            assert present.buckets == tuple(bucket for bucket, _ in found.buckets)


async def test_a_local_october_is_no_longer_than_a_month(services: Services, kitchen: Device) -> None:
    start, end = (
        Milliseconds(round(datetime(2026, month, 1, tzinfo=ZoneInfo("Europe/Paris")).timestamp()) * 1000)
        for month in (10, 11)
    )
    analytics = services.messages.analytics
    for zone, is_refused in ((None, True), (ZoneInfo("Europe/Paris"), False), (ZoneInfo("Asia/Kolkata"), True)):
        ask = partial(analytics.histogram, kitchen, "intensity", Interval.DAY, start_ms=start, end_ms=end, zone=zone)
        if is_refused:
            with pytest.raises(ValidationFailed):
                await ask()
        else:
            found = await ask()
            assert (found.start_ms, found.end_ms) == (start, end)


# Messages that count


async def test_only_messages_that_are_a_minute_old_count(services: Services, kitchen: Device) -> None:
    for age in (59_999, 60_000, 60_001):
        await send(services, kitchen, {"intensity": age}, NOW_MS - age)
    for _ in range(2):
        found = await services.messages.analytics.aggregates(
            kitchen, "intensity", start_ms=Milliseconds(NOW_MS - HOUR_MS), end_ms=Milliseconds(NOW_MS + HOUR_MS)
        )
        assert found.aggregate is not None
        assert (found.aggregate.count, found.aggregate.min, found.aggregate.max) == (2, 60_000, 60_001)
        await services.messages.projector.flush()


async def test_dates_are_rounded_down_and_the_end_is_exclusive(services: Services, kitchen: Device) -> None:
    start = NOW_MS - HOUR_MS - NOW_MS % HOUR_MS
    for number, ts in enumerate((start - 1, start, start + MINUTE_MS - 1, start + MINUTE_MS)):
        await send(services, kitchen, {"intensity": number}, ts)
    found = await services.messages.analytics.aggregates(
        kitchen, "intensity", start_ms=Milliseconds(start + 59_999), end_ms=Milliseconds(start + MINUTE_MS + 1)
    )
    assert (found.start_ms, found.end_ms) == (start, start + MINUTE_MS)
    assert found.aggregate is not None
    assert (found.aggregate.count, found.aggregate.sum) == (2, 3)


async def test_months_begin_in_utc(services: Services, kitchen: Device) -> None:
    def at(*day: int) -> int:
        return int(datetime(*day, tzinfo=UTC).timestamp() * 1000)  # type: ignore[arg-type,misc]

    for ts in (at(2024, 1, 31), at(2024, 2, 1), at(2024, 2, 29, 23, 59), at(2024, 3, 1)):
        await send(services, kitchen, {"intensity": 1}, ts)
    found = await services.messages.analytics.histogram(
        kitchen,
        "intensity",
        Interval.MONTH,
        start_ms=Milliseconds(at(2024, 1, 15)),
        end_ms=Milliseconds(at(2024, 12, 31)),
    )
    assert found.start_ms == at(2024, 1, 1)
    assert found.end_ms == at(2024, 12, 1)
    assert [(start, bucket.count) for start, bucket in found.buckets] == [
        (at(2024, 1, 1), 1),
        (at(2024, 2, 1), 2),
        (at(2024, 3, 1), 1),
    ]


async def test_without_messages_there_is_no_aggregate(services: Services, kitchen: Device) -> None:
    found = await services.messages.analytics.aggregates(
        kitchen, "intensity", start_ms=Milliseconds(0), end_ms=Milliseconds(0)
    )
    assert found.aggregate is None


async def test_presence_of_a_group_is_that_of_any_field_in_it(services: Services, kitchen: Device) -> None:
    await send(services, kitchen, {"colorRGB": {"g": 1}}, NOW_MS - HOUR_MS)
    await send(services, kitchen, {"state": True}, NOW_MS - 3 * HOUR_MS)
    start = NOW_MS - DAY_MS
    for _ in range(2):
        found = await services.messages.analytics.presence(
            [kitchen], Interval.HOUR, field="colorRGB", start_ms=Milliseconds(start), end_ms=NOW_MS
        )
        assert found.buckets == (Interval.HOUR.start_of(NOW_MS - HOUR_MS),)
        await services.messages.projector.flush()


@pytest.mark.both_engines
@pytest.mark.parametrize("is_folded", [True, False])
async def test_presence_of_devices_is_that_of_any_of_them(
    services: Services, kitchen: Device, hall: Device, is_folded: bool
) -> None:
    now = Interval.MINUTE.start_of(NOW_MS)
    for device, age in ((kitchen, 9), (hall, 9), (hall, 8), (kitchen, 7), (hall, 5), (kitchen, 1), (hall, 0)):
        await send(services, device, {"state": True}, now - age * MINUTE_MS)
    if is_folded:
        await services.messages.projector.flush()
    for devices, seen in (([kitchen, hall], [9, 8, 7, 5, 1]), ([hall], [9, 8, 5]), ([kitchen], [9, 7, 1]), ([], [])):
        found = await services.messages.analytics.presence(
            devices,
            Interval.MINUTE,
            field=None,
            start_ms=Milliseconds(now - 20 * MINUTE_MS),
            end_ms=Milliseconds(now + 20 * MINUTE_MS),
        )
        assert found.buckets == tuple(now - age * MINUTE_MS for age in seen)


async def test_numbers_at_the_limits_of_a_double_do_not_stop_the_projections(
    services: Services, kitchen: Device
) -> None:
    for value in (1.7e308, -1.7e308, 1.7e308):
        last = await send(services, kitchen, {"temperature": value}, NOW_MS - HOUR_MS)
    await services.messages.projector.flush()
    assert services.messages.projector.position == last
    await send(services, kitchen, {"temperature": 1}, NOW_MS - HOUR_MS)
    await services.messages.projector.flush()
    found = await services.messages.analytics.aggregates(
        kitchen, "temperature", start_ms=Milliseconds(NOW_MS - DAY_MS), end_ms=NOW_MS
    )
    assert found.aggregate is not None
    assert found.aggregate.count == 4


# Refusals


@pytest.mark.both_engines
@each_row("interval", Interval)
async def test_ranges_have_limits(services: Services, kitchen: Device, interval: Interval) -> None:
    start = NOW_MS - 20 * YEAR_MS
    longest = LONGEST[interval]
    await services.messages.analytics.histogram(
        kitchen, "intensity", interval, start_ms=Milliseconds(start), end_ms=Milliseconds(start + longest)
    )
    with pytest.raises(ValidationFailed) as error:
        await services.messages.analytics.histogram(
            kitchen, "intensity", interval, start_ms=Milliseconds(start), end_ms=Milliseconds(start + longest + 1)
        )
    assert findings(error) == [("endDate", INVALID)]
    longest = 10 * YEAR_MS if interval is Interval.YEAR else longest
    await services.messages.analytics.presence(
        [kitchen], interval, field=None, start_ms=Milliseconds(start), end_ms=Milliseconds(start + longest)
    )
    with pytest.raises(ValidationFailed) as error:
        await services.messages.analytics.presence(
            [kitchen], interval, field=None, start_ms=Milliseconds(start), end_ms=Milliseconds(start + longest + 1)
        )
    assert findings(error) == [("endDate", INVALID)]


async def test_aggregates_of_31_days_and_a_minute_are_refused(services: Services, kitchen: Device) -> None:
    start = NOW_MS - 40 * DAY_MS
    await services.messages.analytics.aggregates(
        kitchen, "intensity", start_ms=Milliseconds(start), end_ms=Milliseconds(start + 31 * DAY_MS)
    )
    with pytest.raises(ValidationFailed) as error:
        await services.messages.analytics.aggregates(
            kitchen, "intensity", start_ms=Milliseconds(start), end_ms=Milliseconds(start + 31 * DAY_MS + MINUTE_MS)
        )
    assert findings(error) == [("endDate", INVALID)]


@each_row(
    ("name", "text"),
    [
        ("unknown", INVALID),
        ("state", "Numeric field only"),
        ("text", "Numeric field only"),
        ("samples", "Numeric field only"),
        ("colorRGB", "Numeric field only"),
        ("colorRGB.x", INVALID),
        ("", INVALID),
    ],
)
async def test_fields_must_be_numeric_and_declared(services: Services, kitchen: Device, name: str, text: str) -> None:
    with pytest.raises(ValidationFailed) as error:
        await services.messages.analytics.aggregates(kitchen, name, start_ms=Milliseconds(0), end_ms=Milliseconds(0))
    assert findings(error) == [("field", text)]


async def test_presence_of_a_field_that_no_manifest_declares_is_refused(services: Services, kitchen: Device) -> None:
    with pytest.raises(ValidationFailed) as error:
        await services.messages.analytics.presence(
            [kitchen], Interval.DAY, field="unknown", start_ms=Milliseconds(0), end_ms=Milliseconds(0)
        )
    assert findings(error) == [("fieldPresence", INVALID)]


@each_row(
    ("start", "end", "finding"),
    [
        (-1, 0, ("startDate", "Minimum value 0")),
        (0, -1, ("endDate", "Minimum value 0")),
        (2, 1, ("startDate", INVALID)),
        (2**62, 2**62, ("startDate", f"Maximum value {LAST_MS}")),
        (LAST_MS, 2**62, ("endDate", f"Maximum value {LAST_MS}")),
    ],
)
async def test_dates_outside_of_the_calendar_are_refused(
    services: Services, kitchen: Device, start: int, end: int, finding: tuple[str, str]
) -> None:
    for interval in Interval:
        with pytest.raises(ValidationFailed) as error:
            await services.messages.analytics.histogram(
                kitchen, "intensity", interval, start_ms=Milliseconds(start), end_ms=Milliseconds(end)
            )
        assert findings(error) == [finding]


async def test_the_last_dates_of_the_calendar_are_served(services: Services, kitchen: Device) -> None:
    for interval in Interval:
        await services.messages.analytics.histogram(
            kitchen, "intensity", interval, start_ms=Milliseconds(LAST_MS), end_ms=Milliseconds(LAST_MS)
        )


# Any sequence of messages, in any order, with flushes and restarts between


@dataclass(frozen=True)
class Send:
    device: DeviceKey
    age_ms: int
    data: Mapping[str, Any]


ages = st.one_of(
    st.sampled_from([MINUTE_MS, 2 * MINUTE_MS, 3 * MINUTE_MS]),
    st.builds(
        lambda days, minutes, ms: days * DAY_MS + minutes * MINUTE_MS + ms,
        st.sampled_from([0, 0, 0, 1, 2, 30, 31, 200]),
        st.integers(-1, 70),  # within the grace period of the future, too
        st.sampled_from([0, 1, 30_000, 59_999]),
    ),
)
numbers = st.builds(
    lambda offset, step, steps: offset + step * steps,
    st.sampled_from([0, 1e9, -1e12, 2**53, 2**62]),
    st.sampled_from([1, 1e-3, 1e-6]),
    st.integers(-9, 9),
)
data = st.one_of(
    st.builds(lambda number: {"temperature": number}, numbers),
    st.builds(lambda number, red: {"temperature": number, "colorRGB": {"r": red}}, numbers, st.integers(0, 255)),
    st.builds(lambda state: {"state": state}, st.booleans()),
    st.builds(lambda samples: {"samples": samples}, st.lists(st.integers(0, 3), max_size=2)),
)
sends = st.builds(Send, st.integers(0, 1), ages, data)
events = st.sampled_from(
    ["flush", "write one", "write one", "restart", "crash", "a minute later", "two days later", "sweep"]
)
steps = st.lists(st.one_of(sends, sends, sends, events), max_size=25)
ends = st.one_of(ages, st.sampled_from([-MINUTE_MS, -HOUR_MS // 2, -HOUR_MS, -32 * DAY_MS]))
queries = st.tuples(st.sampled_from(list(Interval)), ends, st.sampled_from([1, 10, 50, 100, 100]))


@settings(max_examples=examples(100, run=5), deadline=None)
@given(steps, st.lists(queries, min_size=1, max_size=4))
def test_answers_equal_a_plain_recomputation(steps: list[Send | str], queries: list[tuple[Interval, int, int]]) -> None:
    # Few rows are many here, so that each way of adding them is taken.
    with patch.multiple(folds, _WAITING=3, _MANY=2, _ROWS_AT_ONCE=5), patch.object(projections, "_WRITE_DEVICES", 1):
        trio.run(_run, steps, queries)


@dataclass
class Plain:
    """All messages of one device, for a plain recomputation."""

    rows: list[tuple[int, int, dict[str, Any]]] = field(default_factory=list)  # ts, position, flat data

    def aged(self, path: str, start_ms: int, end_ms: int, now_ms: int) -> dict[int, list[Any]]:
        found = defaultdict(list)
        for ts, _, flat in self.rows:
            if path in flat and start_ms <= ts < end_ms and ts <= now_ms - MINUTE_MS:
                found[ts].append(flat[path])
        return found

    def snapshot(self) -> dict[str, tuple[int, int, Any]]:
        latest: dict[str, tuple[int, int, Any]] = {}
        for ts, position, flat in sorted(self.rows, key=lambda row: row[:2]):
            latest |= {path: (ts, position, value) for path, value in flat.items() if path}
        return latest


async def _run(steps: Sequence[Send | str], queries: Sequence[tuple[Interval, int, int]]) -> None:
    clock = FakeClock(NOW_MS)
    plain = [Plain(), Plain()]
    with tempfile.TemporaryDirectory() as temporary:
        async with AsyncExitStack() as stack:
            folder = Path(temporary) / "0"
            folder.mkdir()

            settings = Settings(state_dir=folder, storage=Storage(retention_days=1))
            opener = ServicesOpener(settings, MigratedEngine(folder / "store"), clock.clock)

            async def start() -> Services:
                await stack.aclose()
                return await stack.enter_async_context(opener())

            services = await start()
            world = await build_world(services.core.database, services.core.vault)
            keys = [world.kitchen, world.hall]
            for step in steps:
                if isinstance(step, Send):
                    ts = clock.now - step.age_ms
                    position = await send(
                        services, await services.devices.registry.get(keys[step.device]), step.data, ts
                    )
                    plain[step.device].rows.append((ts, position, _flat(step.data)))
                elif step == "flush":
                    await services.messages.projector.flush()
                elif step == "write one":
                    await _write_one(services.messages.projector)
                elif step == "sweep":
                    await services.messages.retention.sweep()
                elif step == "restart":
                    services = await start()
                elif step == "crash":  # only what is on the disk now is left: no worker saves its state
                    folder = shutil.copytree(folder, folder.with_name(f"{folder.name}0"))
                    services = await start()
                else:
                    clock.advance(MINUTE_MS if step == "a minute later" else 2 * DAY_MS)
            devices = [await services.devices.registry.get(key) for key in keys]
            for interval, age, share in queries:
                end = clock.now - age
                await _compare(
                    services, devices, plain, interval, end - LONGEST[interval] * share // 100, end, clock.now
                )
            for device, expected in zip(devices, plain, strict=True):
                assert await services.messages.snapshots.of(device.key) == expected.snapshot()


async def _write_one(projector: Projector) -> None:
    """Write one device: after a crash, one has rows that the other lacks."""
    async with projector._working:
        await projector._catch_up()
        if projector._unwritten:
            await projector._write_some()


async def _compare(
    services: Services,
    devices: Sequence[Device],
    plain: Sequence[Plain],
    interval: Interval,
    start_ms: int,
    end_ms: int,
    now_ms: int,
) -> None:
    first, expected = devices[0], plain[0]
    histogram = await services.messages.analytics.histogram(
        first, "temperature", interval, start_ms=Milliseconds(start_ms), end_ms=Milliseconds(end_ms)
    )
    start, end = _start(interval, start_ms), _start(interval, end_ms)
    assert (histogram.start_ms, histogram.end_ms) == (start, end)
    buckets: dict[int, list[Any]] = defaultdict(list)
    for ts, values in expected.aged("temperature", start, end, now_ms).items():
        buckets[_start(interval, ts)] += values
    assert [bucket for bucket, _ in histogram.buckets] == sorted(buckets)
    for bucket, aggregate in histogram.buckets:
        _assert_agrees(aggregate, buckets[bucket])

    begin = max(start_ms, end_ms - 31 * DAY_MS)
    aggregates = await services.messages.analytics.aggregates(
        first, "temperature", start_ms=Milliseconds(begin), end_ms=Milliseconds(end_ms)
    )
    aged = expected.aged("temperature", begin - begin % MINUTE_MS, end_ms - end_ms % MINUTE_MS, now_ms)
    values = [value for values in aged.values() for value in values]
    assert (aggregates.aggregate is None) is (not values)
    if aggregates.aggregate is not None:
        _assert_agrees(aggregates.aggregate, values)

    for path in (None, "temperature", "colorRGB", "colorRGB.r", "samples"):
        leaf = {None: "", "colorRGB": "colorRGB.r"}.get(path, path) or ""
        for some, of_some in ((devices, plain), (devices[1:], plain[1:])):
            presence = await services.messages.analytics.presence(
                some, interval, field=path, start_ms=Milliseconds(start_ms), end_ms=Milliseconds(end_ms)
            )
            seen = {_start(interval, ts) for one in of_some for ts in one.aged(leaf, start, end, now_ms)}
            assert presence.buckets == tuple(sorted(seen))


def _assert_agrees(found: Aggregate, values: Sequence[Any]) -> None:
    wide = np.array(values, dtype=np.longdouble)
    scale = float(np.max(np.abs(wide)))
    assert (found.count, found.min, found.max) == (len(values), min(values), max(values))
    assert isclose(found.sum, float(np.sum(wide)), rel_tol=1e-12, abs_tol=1e-12 * scale * len(values))
    assert isclose(found.mean, float(np.mean(wide)), rel_tol=1e-12, abs_tol=1e-12 * scale)
    assert found.variance is not None
    assert isclose(found.variance, float(np.var(wide - wide[0])), rel_tol=1e-9, abs_tol=(scale * 2**-60) ** 2)


def _start(interval: Interval, ts: int) -> int:
    """The start of the bucket by numpy's calendar."""
    unit = {"minute": "m", "tenMinutes": "10m", "hour": "h", "day": "D", "month": "M", "year": "Y"}[interval]
    return int(np.datetime64(ts, "ms").astype(f"datetime64[{unit}]").astype("datetime64[ms]").astype(int))


def _flat(group: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {} if prefix else {"": True}
    for name, value in group.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return flat
