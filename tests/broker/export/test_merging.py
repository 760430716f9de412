"""Reading the messages of many devices in one order, piece by piece."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.export import merging
from broker.export.merging import MergedRows
from config.settings import Settings
from storage.keys import DeviceKey, Milliseconds, Position
from storage.log_index import EntryBuilder
from storage.message_searches import MessageSearches, SortKey, sort_key
from storage.records import MessageRow
from storage.sql import StoreDamagedError
from storage.transaction import Transaction
from tests.rows import each_row
from tests.stores import begin_store, lift_references, storage_of, store_of

pytestmark = pytest.mark.slow


DEVICES, ROWS, INDEXED = 100, 2_000, 1_800
DENSE_MS = Milliseconds(40_000)  # one row in four has this `ts`
START_MS, END_MS = Milliseconds(1_000), Milliseconds(3_500_000)
WANTED = [DeviceKey(key) for key in range(1, DEVICES)]  # all but one
HEAD = Position(ROWS - 50)


def row(position: int, source: random.Random) -> MessageRow:
    ts = DENSE_MS if position % 4 == 0 else Milliseconds(source.randrange(3_600_000))
    device = DeviceKey(source.randrange(DEVICES) + 1)
    return MessageRow(Position(position), device, ts, ts, 1, "{}")


@pytest.fixture(scope="module")
def log() -> list[MessageRow]:
    source = random.Random(5)  # noqa: S311 - no secret
    return [row(position, source) for position in range(1, ROWS + 1)]


@pytest.fixture(scope="module")
def tx(tmp_path_factory: pytest.TempPathFactory, log: list[MessageRow]) -> Iterator[Transaction]:
    state: Path = tmp_path_factory.mktemp("merging") / "state"
    state.mkdir()
    settings = Settings(state_dir=state, storage=storage_of(state))
    begin_store(settings)
    with store_of(settings, has_references=False) as store:
        lift_references(store)
        store.insert_many("message", MessageRow.__struct_fields__, log)
        entries = EntryBuilder()
        for one in log[:INDEXED]:
            entries.add(one.device, one.ts, one.position)
        transaction = Transaction(store)
        transaction.messages.index("message").add(entries.made, Position(INDEXED))
        transaction.messages.set_counter("indexed", INDEXED)
        yield transaction


@pytest.fixture(autouse=True)
def _few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "_HELD_ROWS", 200)


def merged(place: SortKey | None = None, *, descending: bool = False) -> MergedRows:
    return MergedRows(WANTED, start_ms=START_MS, end_ms=END_MS, head=HEAD, descending=descending, place=place)


def expected(log: list[MessageRow], *, descending: bool) -> list[MessageRow]:
    rows = [one for one in log[:HEAD] if START_MS <= one.ts <= END_MS and one.device != DEVICES]
    return sorted(rows, key=sort_key, reverse=descending)


def taken(rows: MergedRows, tx: Transaction, count: int = 250) -> list[MessageRow]:
    found: list[MessageRow] = []
    while more := rows.take(tx, count):
        found += more
    return found


@pytest.mark.both_engines
@each_row("descending", [False, True])
def test_rows_come_in_one_order_from_any_place_on(tx: Transaction, log: list[MessageRow], descending: bool) -> None:
    every = expected(log, descending=descending)
    assert taken(merged(descending=descending), tx) == every
    for at in (250, len(every) - 2):  # 250, ascending: within the moment
        assert taken(merged(sort_key(every[at]), descending=descending), tx) == every[at + 1 :]


def test_a_window_that_cannot_be_read_at_once_is_read_by_device(
    tx: Transaction, log: list[MessageRow], monkeypatch: pytest.MonkeyPatch
) -> None:
    between, calls = MessageSearches.between, 0

    def sometimes(self: MessageSearches, *arguments: Any, **named: Any) -> list[MessageRow] | None:
        nonlocal calls
        calls += 1
        if calls % 3 == 0:
            raise StoreDamagedError
        return between(self, *arguments, **named)

    monkeypatch.setattr(MessageSearches, "between", sometimes)
    assert taken(merged(), tx) == expected(log, descending=False)
    assert calls > 3


@pytest.mark.both_engines
def test_few_statements_read_many_devices_and_few_rows_are_held(
    tx: Transaction, log: list[MessageRow], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One statement for each device and piece would be thousands. The dense moment is read so: it is left out."""
    connection, statements = type(tx.connection), 0
    execute = connection.execute

    def counted(self: Any, *arguments: Any) -> Any:
        nonlocal statements
        statements += 1
        return execute(self, *arguments)

    monkeypatch.setattr(connection, "execute", counted)
    behind = (Milliseconds(DENSE_MS + 1), Position(0))
    rows, most = merged(behind), 0
    while rows.take(tx, 250):
        most = max(most, len(rows._ready))
    assert most <= 2 * merging._HELD_ROWS
    assert statements < DEVICES
