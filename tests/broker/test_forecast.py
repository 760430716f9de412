"""The forecast of the disk: its parts, and the size that the store has months later (reference 27.12)."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest
import trio
from msgspec import structs

from broker.clock import Clock
from broker.cluster.leases import Lease, LeaseName
from broker.messages.intervals import DAY_MS, HOUR_MS, MINUTE_MS
from broker.messages.retention import Retention
from broker.messages.rollup_days import RollupDays
from broker.operating.forecast import Forecast, KeptDays, forecast
from config.settings import Settings, Storage, Subscriptions
from storage.database import Database
from storage.engines import engine_of
from storage.keys import DeviceTypeKey, Milliseconds
from storage.sizes import DAYS, HOURS, INDEX, MESSAGES, MINUTES, OTHER, WEEK_MS, Sample, Sizes, StorePart
from tests.postgresql import ENGINE
from tests.properties import in_ci
from tests.rows import each_row
from tests.stores import begin_store, lift_references, storage_of, store_of

pytestmark = pytest.mark.slow


START_MS: Final = 1_700_000_000_000 // DAY_MS * DAY_MS
DEVICES: Final = 2
STEP_MS: Final = 30 * MINUTE_MS
FIELDS: Final = 3
BEFORE = 30  # days
#: With retention: PostgreSQL takes some seconds for each sweep and the vacuum behind it.
LATER: Final = 30 if ENGINE == "postgresql" else 90
MIB: Final = 2**20


def settings_with(state: Path, **days: int) -> Settings:
    storage = structs.replace(Storage(**days), url=storage_of(state).url)  # type: ignore[arg-type]
    return Settings(state_dir=state, storage=storage)


def fill(settings: Settings, first: int, behind: int) -> None:
    """What a few devices send in these days, as the daemon stores it: messages, index and rollups."""
    with store_of(settings, has_references=False) as store:
        lift_references(store)
        messages, entries = [], []
        rollups: list[tuple[object, ...]] = []
        for at in range(first * DAY_MS, behind * DAY_MS, STEP_MS):
            for device in range(1, DEVICES + 1):
                position, ts = at // STEP_MS * DEVICES + device, START_MS + at
                data = json.dumps({"temperature": 20 + at % 7, "state": True, "text": "as usual" * 8})
                messages.append((position, device, ts, ts, 1, data))
                rollups += _rollups(device, ts)
                if at % DAY_MS == 0:
                    places = [position + DEVICES * n for n in range(DAY_MS // STEP_MS)]
                    last = START_MS + at + DAY_MS - STEP_MS
                    entries.append((device, places[-1], ts, last, 1, len(places), json.dumps(places)))
        store.insert_many("message", ("position", "device", "ts", "cts", "mv", "data"), messages)
        of_entry = ("device", "upto", "first_ts", "last_ts", "ordered", "number", "positions")
        store.insert_many("message_entry", of_entry, entries)
        values = ("count", "numbers", "min", "max", "sum", "mean_high", "mean_low", "m2")
        store.insert_many("rollup", ("device", "field", "level", "bucket", *values), rollups)


def _rollups(device: int, ts: int) -> Iterator[tuple[object, ...]]:
    for level, length in (("minute", MINUTE_MS), ("hour", HOUR_MS), ("day", DAY_MS)):
        if ts % length == 0:
            for field in range(1, FIELDS + 1):
                yield (device, field, level, ts, 1, 1, 20.5, 24.5, 21.5, 21.5, 0.0, 0.25)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    state = tmp_path / "state"
    state.mkdir()
    settings = settings_with(state)
    begin_store(settings)
    with store_of(settings, has_references=False) as store:
        lift_references(store)
        columns = ("key", "id", "owner", "device_type", "name", "manifest_version", "manifest_version_policy")
        more = ("enabled", "created_on")
        rows = [(key, f"d{key}", 1, 1, "D", 1, "LATEST", 1, 1) for key in range(1, DEVICES + 1)]
        store.insert_many("device", (*columns, *more), rows)
        store.insert_many("field", ("key", "path"), [(key, f"f{key}") for key in range(1, FIELDS + 1)])
        store.insert_many("consumer", ("name", "position"), [("folds", 10**9)])
    return state


@asynccontextmanager
async def opened(settings: Settings) -> AsyncIterator[Database]:
    database = Database(engine_of(settings))
    await database.open()
    async with trio.open_nursery() as nursery:
        await nursery.start(database.commit_forever)
        yield database
        nursery.cancel_scope.cancel()


async def sweep(settings: Settings, days: int) -> None:
    """What the daemon deletes at the end of this day; autovacuum runs on PostgreSQL."""
    async with opened(settings) as database:
        clock = Clock(now_ms=lambda: Milliseconds(START_MS + days * DAY_MS))
        rollups = RollupDays.of(settings.storage)
        await Retention(
            database, Lease(LeaseName.UPKEEP), clock, days=settings.storage.retention_days, rollups=rollups
        ).sweep()
    vacuum(settings)


def vacuum(settings: Settings) -> None:
    if ENGINE == "postgresql":
        from storage.engines.postgresql import PostgresqlEngine

        engine = engine_of(settings)
        assert isinstance(engine, PostgresqlEngine)
        with engine.target.connect() as connection:
            connection.execute("SELECT pg_stat_force_next_flush()")
            connection.execute("VACUUM ANALYZE")


def forecast_at(settings: Settings, days: int) -> Forecast:
    with engine_of(settings).snapshot() as snapshot:
        return forecast(snapshot.rows, settings, now_ms=START_MS + days * DAY_MS)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store of some MiB keeps no 16 MiB free, and its tables are not small."""
    for name, value in (("_FREE_BYTES_KEPT", MIB), ("_PAUSE_SECONDS", 0), ("_PAUSE_BETWEEN_PAGES_SECONDS", 0)):
        monkeypatch.setattr(f"broker.messages.retention.{name}", value)
    monkeypatch.setattr("storage.engines.sqlite._MEASURED_PAGES", 30)


@pytest.mark.both_engines
@pytest.mark.parametrize(
    ("later", "kept"),
    [
        (30, {}),
        pytest.param(LATER, {"retention_days": 20, "minute_rollup_days": 15, "hour_rollup_days": 25}, marks=in_ci),
    ],
)
async def test_the_store_has_the_forecast_size_months_later(state: Path, later: int, kept: dict[str, int]) -> None:
    settings = settings_with(state, **kept)
    fill(settings, 0, BEFORE)
    await sweep(settings, BEFORE) if kept else vacuum(settings)
    found = forecast_at(settings, BEFORE)
    expected = found.sizes[later - 1]
    for day in range(BEFORE, BEFORE + later, 6):
        fill(settings, day, day + 6)
        if kept:
            await sweep(settings, day + 6)
    vacuum(settings)
    with engine_of(settings).snapshot() as snapshot:
        actual = snapshot.size_bytes
    growth, of_growth = actual - found.measured.store_bytes, expected - found.measured.store_bytes
    assert expected == pytest.approx(actual, rel=0.2)
    if not kept:  # the store is twice as large
        assert of_growth == pytest.approx(growth, rel=0.25)


@pytest.mark.both_engines
def test_each_part_is_measured(state: Path) -> None:
    settings = settings_with(state)
    fill(settings, 0, BEFORE)
    vacuum(settings)
    found = forecast_at(settings, BEFORE)
    parts = {part.name: part for part in found.parts}
    assert sum(part.size for part in parts.values()) + found.measured.free_bytes == pytest.approx(
        found.measured.store_bytes, rel=0.02
    )
    whole = {
        MESSAGES: size_of(settings, "message"),
        INDEX: size_of(settings, "message_entry"),
    }
    for name, size in whole.items():
        assert parts[name].size == pytest.approx(size, rel=0.2), name
    rollups = size_of(settings, "rollup")
    shares = {MINUTES: 1, HOURS: STEP_MS / HOUR_MS, DAYS: STEP_MS / DAY_MS}
    for name, share in shares.items():
        assert parts[name].size == pytest.approx(rollups * share / sum(shares.values()), rel=0.2), name
    rows_a_day = DAY_MS // STEP_MS * DEVICES
    a_message = parts[MESSAGES].size / (rows_a_day * BEFORE)
    assert parts[MESSAGES].bytes_a_day == pytest.approx(rows_a_day * a_message, rel=0.15)


def size_of(settings: Settings, table: str) -> int:
    """As the engine tells it, page by page."""
    with store_of(settings, read_only=True) as store:
        if ENGINE == "postgresql":
            row = store.execute(
                "SELECT sum(pg_total_relation_size(c.oid))::bigint AS bytes FROM pg_class AS c"
                " WHERE c.relkind = 'r' AND (c.relname = :name OR c.oid IN (SELECT inhrelid FROM pg_inherits"
                " WHERE inhparent = to_regclass(:name)))",
                {"name": table},
            ).one()
        else:
            row = store.execute(
                "SELECT sum(pgsize) AS bytes FROM dbstat WHERE name IN (SELECT name FROM sqlite_master"
                " WHERE tbl_name = :name)",
                {"name": table},
            ).one()
    assert row is not None
    return int(row["bytes"])


# What follows from the sizes


def sizes(*, free: int = 0, gives_back: bool = True, days: int = 10, a_day: float = MIB, store: int = 0) -> Sizes:
    """Messages that came evenly in the last days."""
    samples = [Sample(START_MS - hour * HOUR_MS, a_day / 24, 1) for hour in range(24 * days)]
    parts = [StorePart(MESSAGES, days * a_day, samples), StorePart(OTHER, 0)]
    since_ms = START_MS - days * DAY_MS if days else None
    return Sizes(store or round(days * a_day) + free, free, gives_back, since_ms, parts)


def of(found: Sizes, *, messages: int = 0, own: int | None = None) -> Forecast:
    own_days = {} if own is None else {DeviceTypeKey(1): own}
    return Forecast(found, KeptDays(messages, RollupDays(), 365, 30, own_days), now_ms=START_MS)


@each_row(
    ("found", "messages", "own", "available", "days"),
    [
        (sizes(), 0, None, 100 * MIB, 99),
        (sizes(free=20 * MIB), 0, None, 100 * MIB, 119),  # free pages are used first
        (sizes(), 10, None, MIB, None),  # what comes replaces what goes
        (sizes(), 5, None, MIB, None),
        (sizes(), 30, None, 19 * MIB, 18),
        (sizes(), 30, None, 21 * MIB, None),
        (sizes(), 10, 0, 100 * MIB, 99),  # the type's own days count
        (sizes(), 0, 10, MIB, None),
        (sizes(a_day=0), 0, None, MIB, None),
        (sizes(days=0), 0, None, MIB, None),
    ],
)
def test_the_day_on_which_the_disk_is_full(
    found: Sizes, messages: int, own: int | None, available: int, days: int | None
) -> None:
    full = of(found, messages=messages, own=own).full_after(available)
    assert full == (None if days is None else pytest.approx(days, abs=1))


def test_free_room_goes_back_only_where_the_engine_can_do_that() -> None:
    for gives_back, size in ((True, 6 * MIB), (False, 10 * MIB)):
        last = of(sizes(gives_back=gives_back), messages=5).sizes[-1]
        assert last == pytest.approx(size, rel=0.05)


def test_the_settings_that_help_are_named_with_their_greatest_value() -> None:
    assert of(sizes()).settings_for(20 * MIB) == "set storage.retention_days to at most 29"
    minutes = Sizes(10 * MIB, 0, True, START_MS - WEEK_MS, [StorePart(MINUTES, 10 * MIB, sizes().parts[0].samples)])
    assert of(minutes).settings_for(20 * MIB) == "set storage.minute_rollup_days to at most 29"
    assert of(sizes(a_day=50 * MIB)).settings_for(1) == "set storage.retention_days to at most 9"
    assert of(sizes(days=2, a_day=50 * MIB)).settings_for(-100 * MIB) == "lower storage.retention_days"


def test_own_days_of_the_settings_reach_each_part() -> None:
    settings = Settings(
        state_dir=Path(),
        storage=Storage(retention_days=30, minute_rollup_days=20),
        subscriptions=Subscriptions(keep_days=9),
    )
    kept = KeptDays.of(settings, {DeviceTypeKey(2): 0})
    assert [kept.days(part, DeviceTypeKey(1)) for part in (MESSAGES, INDEX, MINUTES, "deliveries")] == [30, 30, 20, 9]
    assert [kept.days(part, DeviceTypeKey(2)) for part in (MESSAGES, MINUTES, DAYS)] == [0, 20, 0]
