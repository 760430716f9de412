"""Checks of a whole store read its file ahead: in large pieces, in the direction in which SQLite checks a tree."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage.engines.sqlite import SqliteEngine
from storage.engines.sqlite_compact import compact
from storage.engines.sqlite_read_ahead import PIECE_BYTES, reading_ahead
from storage.sql import StoreError
from tests.stores import make_store

pytestmark = pytest.mark.sqlite("the check of a file")


@pytest.fixture
def offsets(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Where pieces were read. No thread goes on reading after the test."""
    found, read = list[int](), os.preadv

    def preadv(descriptor: int, buffers: list[bytearray], at: int) -> int:
        found.append(at)
        return read(descriptor, buffers, at)

    monkeypatch.setattr(os, "preadv", preadv)
    yield found
    assert "reading ahead" not in [thread.name for thread in threading.enumerate()]


def test_pieces_come_from_the_last_to_the_first(tmp_path: Path, offsets: list[int]) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(3 * PIECE_BYTES + 1))
    with reading_ahead(path):
        for thread in threading.enumerate():
            if thread.name == "reading ahead":
                thread.join()
    assert offsets == [3 * PIECE_BYTES, 2 * PIECE_BYTES, PIECE_BYTES, 0]


def test_a_restored_store_and_a_compacted_one_are_read_ahead_of_their_check(tmp_path: Path, offsets: list[int]) -> None:
    store = tmp_path / "store.sqlite"
    make_store(store)
    SqliteEngine(store).check()
    assert offsets == sorted(offsets, reverse=True) != []
    offsets.clear()
    compact(store, lambda _text: None)
    assert offsets == sorted(offsets, reverse=True) != []


def test_the_check_alone_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def torn(_descriptor: int, _buffers: list[bytearray], _at: int) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "preadv", torn)
    store = tmp_path / "store.sqlite"
    make_store(store)
    SqliteEngine(store).check()
    with store.open("r+b") as file:
        file.truncate(store.stat().st_size // 2)
    with pytest.raises(StoreError):
        SqliteEngine(store).check()
