"""Exports with one file for each device type, and what reads them (reference 10.4)."""

import csv
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.accounts.tokens import Caller
from broker.device_types.manifest import Field, Manifest, ValueClass
from broker.devices.registry import Device
from broker.errors import ValidationFailed
from broker.export import exports, merging, parquet
from broker.export.parquet import ParquetFailed, ParquetFile, ParquetNotInstalled
from broker.export.status import ExportStatus
from broker.export.tables import columns_of, plain_text, text_cell, utc
from broker.export.zipped import Zip, ZipEntry
from broker.services import Services
from storage.sql import StoreError
from tests.broker.export.test_exports import ada, archive_of, asking, finished, hall, kitchen, send
from tests.factories import ADA, HALL, KITCHEN, LIGHT_TYPE, NOW_MS

pytestmark = pytest.mark.slow


__all__ = ["ada", "hall", "kitchen"]

EARLY = 1_500_000_000_000


async def tables(services: Services, caller: Caller, **asked: Any) -> dict[str, bytes]:
    export_id = await services.export.create(caller, asking(**asked))
    export = await finished(services, caller, export_id)
    assert export.status is ExportStatus.SUCCESS, export.record.last_error
    return unzipped(await archive_of(services, caller, export_id))


def unzipped(content: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name) for name in archive.namelist()}


async def fill(services: Services, kitchen: Device, hall: Device) -> None:
    """Messages of every kind of value, the oldest years ago, and of two devices of one type."""
    await send(
        services,
        (kitchen, EARLY, {"state": True, "intensity": 7, "temperature": 20, "text": "a"}),
        (hall, EARLY + 1, {"temperature": -0.5, "text": "=1+1", "samples": [1, 2.5]}),
        (kitchen, NOW_MS - 2, {"state": False, "text": 'say "hi",\nü', "colorRGB": {"r": 255}}),
        (kitchen, NOW_MS - 1, {"text": ""}),
    )


async def test_a_table_of_each_type_and_its_readers(
    services: Services, ada: Caller, kitchen: Device, hall: Device, tmp_path: Path
) -> None:
    await fill(services, kitchen, hall)
    asked: dict[str, Any] = {"uids": ADA, "start_ms": 0}
    found = {}
    for format_ in ("csv", "jsonl", "parquet"):
        files = await tables(services, ada, format=format_, **asked)
        about = json.loads(files.pop("about.json"))
        (name,) = files
        assert name.endswith(f"-{LIGHT_TYPE[:8]}.{format_}")
        assert [(one["name"], one["messages"], one["sdtid"]) for one in about["files"]] == [(name, 4, LIGHT_TYPE)]
        found[format_] = tmp_path / f"light.{format_}"
        found[format_].write_bytes(files[name])
    head, *lines = found["csv"].read_text().split("\n")
    assert head == (
        "time [UTC],received [UTC],sdid,device,state,intensity,temperature,text,"
        "colorRGB.r,colorRGB.g,colorRGB.b,samples,more"
    )
    assert lines[:2] == [
        f"2017-07-14T02:40:00.000,{utc(NOW_MS)[:-1]},{KITCHEN},Kitchen light,true,7,20.0,a,,,,,",
        f'2017-07-14T02:40:00.001,{utc(NOW_MS)[:-1]},{HALL},Hall light,,,-0.5,\'=1+1,,,,"[1.0,2.5]",',
    ]
    read_with_pandas(found)
    read_with_duckdb(found)


def read_with_pandas(found: dict[str, Path]) -> None:
    import pandas as pd  # takes a second, in each process that collects this test

    table = pd.read_csv(found["csv"], parse_dates=["time [UTC]", "received [UTC]"])
    frames = [
        table.assign(time=table["time [UTC]"].dt.tz_localize("UTC")),
        pd.read_json(found["jsonl"], lines=True),
        pd.read_parquet(found["parquet"]),
    ]
    frames[1]["time"] = pd.to_datetime(frames[1]["time"])
    for frame in frames:
        assert str(frame["time"].dtype).endswith("UTC]")
        assert frame["time"][0] == pd.Timestamp(EARLY, unit="ms", tz="UTC")
        assert frame["temperature"].dtype == "float64"
        assert list(frame["temperature"][:2]) == [20.0, -0.5]
        assert frame["intensity"][0] == 7
        assert frame["text"][2] == 'say "hi",\nü'
    assert [frame["text"][1] for frame in frames] == ["'=1+1", "=1+1", "=1+1"]


def read_with_duckdb(found: dict[str, Path]) -> None:
    import duckdb

    with duckdb.connect() as db:
        for path in found.values():
            time = '"time [UTC]" AS time, *' if path.suffix == ".csv" else "*"
            db.execute(f"CREATE OR REPLACE VIEW light AS SELECT {time} FROM '{path}'")  # noqa: S608 - a path of the test
            wanted = "SELECT typeof(time), typeof(state), typeof(intensity), typeof(temperature) FROM light"
            row = db.execute(wanted).fetchone()
            assert row is not None
            shown, state, integer, number = row
            assert str(shown).startswith("TIMESTAMP")
            assert (state, integer, number) == ("BOOLEAN", "BIGINT", "DOUBLE")
            wanted = "SELECT device, epoch_ms(time), state, temperature FROM light ORDER BY time"
            assert db.execute(wanted).fetchall()[:2] == [
                ("Kitchen light", EARLY, True, 20.0),
                ("Hall light", EARLY + 1, None, -0.5),
            ]


async def test_values_of_another_class_are_in_the_last_column(services: Services, kitchen: Device) -> None:
    manifest = Manifest((Field("a", ValueClass.INTEGER), Field("time", ValueClass.STRING, unit="s")))
    columns = columns_of([(1, manifest)])
    assert [column.name for column in columns] == ["a", "data.time"]
    assert columns[1].header == "data.time [s]"
    other = Manifest((Field("a", ValueClass.DOUBLE, unit="m"), Field("A", ValueClass.STRING)))
    columns = columns_of([(1, manifest), (2, other)])
    assert [(column.header, column.kind) for column in columns] == [
        ("a", "number"),  # its unit differs: none is said
        ("data.A", "text"),
        ("data.time [s]", "text"),
    ]
    assert columns[0].fitting(3) == 3.0
    assert columns[0].fitting(2**53 + 1) is columns[0].fitting("3") is columns[0].fitting(True)


@pytest.fixture
def tried_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """In exports of services that are opened later."""
    monkeypatch.setattr(exports, "_STORE_SECONDS", 0.0)


async def test_an_export_continues_behind_its_last_step(
    tried_again_at_once: None,
    services: Services,
    ada: Caller,
    kitchen: Device,
    hall: Device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(merging, "EXPORT_ENTRY_MESSAGES", 2)
    await fill(services, kitchen, hall)
    # Each Parquet file is written by a program of its own, which takes a second to start.
    for format_, after in (("csv", range(5)), ("parquet", (2,))):
        whole = await tables(services, ada, format=format_, uids=ADA, start_ms=0)
        for steps in after:
            assert await tables_after_failure(services, ada, monkeypatch, steps, format_) == whole


async def tables_after_failure(
    services: Services, ada: Caller, monkeypatch: pytest.MonkeyPatch, steps: int, format_: str
) -> dict[str, bytes]:
    """The files of an export whose writer is made anew after some steps."""
    put_step, left = exports._put_step, [steps]

    def put(*given: Any) -> bool:
        if left[0] == 0:
            left[0] = -1
            raise StoreError("no room")
        left[0] -= 1
        return put_step(*given)

    with monkeypatch.context() as patch:
        patch.setattr(exports, "_put_step", put)
        return await tables(services, ada, format=format_, uids=ADA, start_ms=0)


async def test_without_the_library_there_is_no_parquet(
    services: Services, ada: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "is_installed", lambda: False)
    with pytest.raises(ParquetNotInstalled, match="its operator can install the extra parquet"):
        await services.export.create(ada, asking(uids=ADA, format="parquet"))


async def test_a_range_that_ends_before_it_begins(services: Services, ada: Caller) -> None:
    with pytest.raises(ValidationFailed) as refused:
        await services.export.create(ada, asking(uids=ADA, format="csv", start_ms=2, end_ms=1))
    assert [one.field for one in refused.value.findings] == ["startDate"]


async def test_no_devices_make_no_tables(services: Services, ada: Caller) -> None:
    found = await tables(services, ada, sdids=KITCHEN, format="jsonl")
    assert found["about.json"]
    assert next(iter(found.values())) == b""


def test_a_process_that_ends_is_a_failure() -> None:
    file = ParquetFile([])
    try:
        assert file.begin() == b"PAR1"
        with pytest.raises(ParquetFailed):
            file.add(b"[[1],[1],[1],[1],[1]]")  # texts that are numbers
        with pytest.raises(ParquetFailed):
            file.add(b"[]")
    finally:
        file.close()


def test_units_in_parquet() -> None:
    import pyarrow.parquet

    columns = columns_of([(1, Manifest((Field("t", ValueClass.DOUBLE, unit="°C"),)))])
    file = ParquetFile(columns)
    content = file.begin() + file.add(b'[[1],[1],["a"],["b"],[1.5],[null]]') + file.end()
    schema = pyarrow.parquet.read_table(io.BytesIO(content)).schema
    assert schema.field("t").metadata == {b"unit": "°C".encode()}
    assert str(schema.field("time").type) == "timestamp[ms, tz=UTC]"


@given(st.text(alphabet="'=+-@\t\ra,\"\n "))
def test_a_cell_is_the_text_again_and_no_formula(text: str) -> None:
    cell = text_cell(text)
    ((read,),) = rows_of(cell)
    assert plain_text(read) == text
    assert not read.startswith(("=", "+", "-", "@", "\t", "\r"))


def rows_of(cell: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(cell, newline=""), strict=True))


@given(st.lists(st.tuples(st.binary(max_size=50), st.booleans()), max_size=5))
def test_a_zip_is_continued_between_any_two_pieces(pieces: list[tuple[bytes, bool]]) -> None:
    entries: list[ZipEntry] = []
    written = b""
    for begins in (True, False):
        for piece, is_packed in pieces:
            archive = Zip(msgspec.json.decode(msgspec.json.encode(entries), type=list[ZipEntry]))
            archive.resume_with(written)
            if begins:
                archive.begin(f"ü{len(entries)}")
            archive.add(piece, is_packed=is_packed)
            if begins:
                archive.end()
            written, entries = written + archive.take(), archive.entries
        if begins:
            archive = Zip(entries)
            archive.resume_with(written)
            archive.begin("last")
            written, entries = written + archive.take(), archive.entries
    archive = Zip(entries)
    archive.resume_with(written)
    archive.end()
    archive.finish()
    written += archive.take()
    found = unzipped(written)
    assert found.pop("last") == b"".join(piece for piece, _ in pieces)
    assert list(found.values()) == [piece for piece, _ in pieces]
