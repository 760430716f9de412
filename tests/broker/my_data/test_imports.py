"""Bringing tables of messages (reference 10.5)."""

import gzip
from collections.abc import AsyncGenerator
from contextlib import aclosing
from time import process_time
from typing import Any

import msgspec
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from broker.accounts.tokens import Caller
from broker.devices.registry import Device
from broker.devices.transfers import hand_over
from broker.errors import BodyTooLarge, PermissionDenied, ValidationFailed
from broker.messages import batches
from broker.my_data import csv_lines, imports
from broker.my_data.csv_lines import CsvLines, CsvRecord
from broker.my_data.imports import Imports, TooManyImports, _Beginning
from broker.services import Services
from storage.imports import ImportRecord
from storage.keys import Milliseconds
from storage.message_searches import Range
from tests.broker.export.test_exports import ada, hall, kitchen
from tests.broker.export.test_tables import fill, tables
from tests.factories import ADA, BOBS, HALL, KITCHEN, NOW_MS, World
from tests.rows import each_row
from tests.stored_files import stored_files

pytestmark = pytest.mark.slow


__all__ = ["ada", "hall", "kitchen"]

TIME = "2020-01-01T00:00:00.5Z"
TIME_MS = 1_577_836_800_500


async def pieces(content: bytes, size: int = 7) -> AsyncGenerator[bytes]:
    for start in range(0, len(content), size):
        yield content[start : start + size]


async def brought(
    services: Services, caller: Caller, content: str | bytes, device: Device | None = None
) -> ImportRecord:
    """What came of a file."""
    encoded = content.encode() if isinstance(content, str) else content
    async with aclosing(pieces(encoded)) as chunks:
        record = await services.my_data.imports.create(caller, chunks, device)
    while (record := await services.my_data.imports.find(caller, record.id)).ended_on is None:
        await trio.testing.wait_all_tasks_blocked()
    return record


def counts(record: ImportRecord) -> tuple[int, int, int]:
    return record.stored, record.present, record.wrong


def wrong(record: ImportRecord) -> dict[int, str]:
    return {one["line"]: one["reason"] for one in msgspec.json.decode(record.wrong_lines)}


async def stored(services: Services, *devices: Device) -> list[tuple[int, Any]]:
    search = Range(Milliseconds(0), NOW_MS)
    keys = [device.key for device in devices]
    rows = await services.core.database.read(lambda tx: tx.message_searches.page(keys, search))
    return [(row.ts, msgspec.json.decode(row.data)) for row in rows]


@pytest.mark.both_engines
async def test_an_export_comes_back_and_only_once(
    services: Services, ada: Caller, kitchen: Device, hall: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(imports, "_LINES_OF_TURN", 2)
    monkeypatch.setattr(imports, "_ROWS_AT_ONCE", 1)
    await fill(services, kitchen, hall)
    before = await stored(services, kitchen, hall)
    found = await tables(services, ada, uids=ADA, format="csv", start_ms=0)
    (content,) = (content for name, content in found.items() if name.endswith(".csv"))
    assert counts(await brought(services, ada, content)) == (0, 4, 0)
    for device in (kitchen, hall):
        await services.my_data.erasures.create(ada, device, 0, NOW_MS)
    while await services.core.database.read(lambda tx: tx.erasures.first_of_each_user()):
        await trio.testing.wait_all_tasks_blocked()
    assert await stored(services, kitchen, hall) == []
    assert counts(await brought(services, ada, content)) == (4, 0, 0)
    assert sorted(await stored(services, kitchen, hall), key=str) == sorted(before, key=str)
    assert counts(await brought(services, ada, content)) == (0, 4, 0)
    assert [name for name in await stored_files(services) if name.startswith("imports/")] == []


async def test_wrong_lines_are_named_and_the_others_are_taken(
    services: Services, ada: Caller, kitchen: Device, hall: Device
) -> None:
    lines = (
        "\ufefftext,intensity,state,time,sdid,more",
        f"a,1,TRUE,{TIME},{KITCHEN},",
        f"b,x,,{TIME},{KITCHEN},",
        f"c,1,,{TIME},{BOBS},",
        f"d,1,,{TIME},{'e' * 32},",
        f"e,1,,yesterday,{KITCHEN},",
        f"f,1,,{TIME},{KITCHEN}",
        f",,,{TIME},{KITCHEN},",
        f"'=g,,,{TIME},{HALL},",
        "",
        f'"h""\nh",,,{TIME_MS + 1},{KITCHEN},"{{""temperature"":2.5,""colorRGB.r"":3}}"',
        f'i,,,{TIME},{KITCHEN},"{{"',
        f"j\0,,,{TIME},{KITCHEN},",
        f'k"k,,,{TIME},{KITCHEN},',
        f"l,,,2999-01-01T00:00:00Z,{KITCHEN},",
        f'"",,,{TIME},{KITCHEN},',
        f"m,99999999999999999999,,{TIME},{KITCHEN},",
    )
    content = (
        "\r\n".join(lines).encode() + b"\nn\xff,1,,,,\n" + f'"o,1,,{TIME},{KITCHEN},\np,2,,{TIME},{KITCHEN},'.encode()
    )
    record = await brought(services, ada, content)
    found = wrong(record)
    assert set(found) == {3, 4, 5, 6, 7, 8, 13, 14, 15, 16, 18, 19, 20}, found
    assert found[3] == "column 2, “intensity”: “x” is not an integer"
    assert "may not write" in found[4]
    assert found[7] == "has 5 cells, and the header 6"
    assert "NUL" in found[14]
    assert found[20] == "a quote is not closed"
    assert counts(record) == (5, 0, 13)
    found_rows = sorted(await stored(services, kitchen, hall), key=lambda row: (row[0], row[1]["text"]))
    assert found_rows == [
        (TIME_MS, {"text": ""}),
        (TIME_MS, {"text": "=g"}),
        (TIME_MS, {"intensity": 1, "state": True, "text": "a"}),
        (TIME_MS, {"intensity": 2, "text": "p"}),
        (TIME_MS + 1, {"colorRGB": {"r": 3}, "temperature": 2.5, "text": 'h"\nh'}),
    ]


@pytest.mark.both_engines
@each_row(
    ("content", "finding"),
    [
        ("", "body"),
        ("\n\n", "body"),
        (f"time,sdid,nosuch\n1,{KITCHEN},3\n", "header"),
        (f"time,sdid,text,text\n{TIME},{KITCHEN},a,a\n", "header"),
        (f"sdid,text\n{KITCHEN},a\n", "header"),
        (f"time,text\n{TIME},a\n", "sdid"),
        ("time,sdid,text\n", "body"),
        (f"time,sdid,text [m]\n{TIME},{KITCHEN},a\n", "header"),
        ("time,sdid,text".encode("utf-16"), "header"),
        (gzip.compress(bytes(1_000_000)), "header"),
        (b"PK\x03\x04" + bytes(70_000), "header"),
        (b"time,sdid," + b"x" * 70_000, "header"),
        (f"time,time [UTC],sdid,text\n1,1,{KITCHEN},a\n", "header"),
        (b'"time\n' * 20_000, "header"),
        (b"a," * 20_000, "header"),
        (b"\x1f\x8b\x08\x00", "header"),
    ],
)
async def test_nothing_of_a_file_with_a_wrong_header_is_taken(
    services: Services, ada: Caller, kitchen: Device, content: str | bytes, finding: str
) -> None:
    with pytest.raises(ValidationFailed) as refused:
        await brought(services, ada, content)
    assert refused.value.findings[0].field == finding
    assert await services.my_data.imports.latest(ada) == []


@pytest.mark.both_engines
async def test_a_file_for_one_device(services: Services, ada: Caller, kitchen: Device, hall: Device) -> None:
    record = await brought(services, ada, f"time,text\n{TIME},a\n{TIME},a\n", hall)
    assert counts(record) == (1, 1, 0)
    record = await brought(services, ada, f"time,text,sdid\n{TIME},b,{KITCHEN}\n{TIME},c,{HALL}\n{TIME},d,", hall)
    assert (counts(record), set(wrong(record))) == ((2, 0, 1), {2})
    assert len(await stored(services, hall)) == 3
    assert await stored(services, kitchen) == []


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        ("grant", "the application may no longer write messages of devices of this type for the user"),
        ("account", "the account is disabled"),
        ("device", "the user may no longer write on the device"),
    ],
)
async def test_an_import_ends_when_its_lines_may_not_be_written_any_more(
    services: Services,
    world: World,
    ada: Caller,
    kitchen: Device,
    monkeypatch: pytest.MonkeyPatch,
    end: str,
    reason: str,
) -> None:
    monkeypatch.setattr(imports, "_LINES_OF_TURN", 2)
    some = Imports._some

    async def then_it_ends(self: Imports, record: ImportRecord) -> None:
        await some(self, record)
        if record.stored:
            return
        assert ada.user is not None
        assert ada.application is not None
        if end == "grant":
            await services.accounts.granted.revoke(ada.user, ada.application)
        elif end == "account":
            await services.accounts.disabling.disable(ADA)
        else:
            known, now_ms = kitchen.record, Milliseconds(NOW_MS)
            await services.core.database.write(lambda tx: hand_over(tx, known, world.bob, now_ms))

    monkeypatch.setattr(Imports, "_some", then_it_ends)
    table = "time,text\n" + "".join(f"{TIME_MS + number},a\n" for number in range(7))
    record = await brought(services, ada, table, kitchen)
    assert (counts(record), record.reason) == ((2, 0, 0), reason)
    assert [name for name in await stored_files(services) if name.startswith("imports/")] == []


async def test_a_cell_of_10_mb_is_one_wrong_line_and_more_and_others_have_their_turn(
    services: Services, ada: Caller, kitchen: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "_TURN_SECONDS", 0.0)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    small = "".join(f"{TIME_MS + number},b\n" for number in range(100))
    content = f'time,text\n{TIME},a\n{TIME},"{"x" * 10_000_000}"\n{small}'.encode()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(others)
        async with aclosing(pieces(content, 65_536)) as chunks:
            record = await services.my_data.imports.create(ada, chunks, kitchen)
        began = turns
        while (record := await services.my_data.imports.find(ada, record.id)).ended_on is None:
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert turns - began > 300  # at least one after each line, which is read and then normalised
    assert (record.stored, record.reason) == (101, "")
    assert 50 < record.wrong < 200  # what has come of the line, piece by piece
    assert set(wrong(record)) == {3}


async def test_bounds(services: Services, ada: Caller, kitchen: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PermissionDenied):
        await brought(services, ada, f"time,sdid,text\n{TIME},{BOBS},a\n")
    monkeypatch.setattr(imports, "IMPORT_BYTES", 30)
    with pytest.raises(BodyTooLarge):
        await brought(services, ada, f"time,text\n{TIME},a\n{TIME},a\n", kitchen)
    monkeypatch.setattr(imports, "IMPORTS_OF_USER", 0)
    with pytest.raises(TooManyImports):
        await brought(services, ada, "time,text\n", kitchen)


def read_all(content: bytes, sizes: list[int]) -> list[CsvRecord]:
    lines, found, at = CsvLines(), list[CsvRecord](), 0
    for size in sizes:
        found += lines.feed(content[at : at + size])
        at += size
    return [*found, *lines.feed(content[at:]), *lines.end()]


@given(st.text(alphabet='a,"\n\r\0\ufeffü').map(str.encode), st.lists(st.integers(0, 9)), st.integers(1, 30))
def test_the_same_lines_are_read_in_whatever_pieces(content: bytes, sizes: list[int], most: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_lines, "RECORD_BYTES", most)
        whole = [one for one in read_all(content, []) if not one.wrong]
        parts = [one for one in read_all(content, sizes) if not one.wrong]
        if most == 30 and len(content) < most:
            assert parts == whole
        for record in parts:  # reading goes on behind any of them
            rest = CsvLines(record.end, record.behind)
            assert record.end <= len(content)
            assert all(one.number >= record.behind for one in [*rest.feed(content[record.end :]), *rest.end()])


def test_an_open_quote_spoils_its_own_line_only_and_costs_each_line_once() -> None:
    lines, table = CsvLines(), b'time,v\n"x,1\n' + b"b,1\n" * 15_000
    began = process_time()
    found = [*lines.feed(table), *lines.end()]
    assert process_time() - began < 1.5  # each line was a look at all behind it
    assert [one.number for one in found if one.wrong] == [2]
    assert (found[-1].number, found[-1].end) == (15_002, len(table))


def test_empty_lines_are_counted_and_cost_nothing() -> None:
    lines, began = CsvLines(), process_time()
    found = [one for piece in [b"\r\n" * 30_000, b"\n" * 60_000] * 50 for one in lines.feed(piece)]
    assert process_time() - began < 3
    (last,) = [*found, *lines.feed(b"a,b\n")]
    assert (last.number, last.end, last.behind) == (4_500_001, 6_000_004, 4_500_002)
    assert [cell.text for cell in last.cells] == ["a", "b"]


def test_a_file_begins_with_two_lines() -> None:
    beginning = _Beginning()
    with pytest.raises(ValidationFailed):
        assert not any(beginning.has(b"\n" * 60_000) for _ in range(5))
