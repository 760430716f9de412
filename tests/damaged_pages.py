"""Damages real pages of a real store, found through its b-trees (sqlite.org/fileformat2.html, 1.6)."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import BinaryIO

_CHANGES, _SIZE_IS_RIGHT_AT = 24, 92
_INTERIOR = {0x02, 0x05}


def leaves(path: Path, name: str) -> list[int]:
    """The numbers of the leaf pages of a table or an index, in its order. The write-ahead log goes into the file."""
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (size,) = db.execute("PRAGMA page_size").fetchone()
        (root,) = db.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (name,)).fetchone()
    return _leaves(path.read_bytes(), size, root)


def _leaves(data: bytes, size: int, page: int) -> list[int]:
    start = (page - 1) * size
    header = start + (100 if page == 1 else 0)
    if data[header] not in _INTERIOR:
        return [page]
    count = int.from_bytes(data[header + 3 : header + 5], "big")
    cells = [int.from_bytes(data[at : at + 2], "big") for at in range(header + 12, header + 12 + 2 * count, 2)]
    children = [int.from_bytes(data[start + cell : start + cell + 4], "big") for cell in cells]
    children.append(int.from_bytes(data[header + 8 : header + 12], "big"))
    return [leaf for child in children for leaf in _leaves(data, size, child)]


def damage(path: Path, page: int) -> None:
    """Overwrite a page with what no page begins with."""
    with closing(sqlite3.connect(path)) as db:
        (size,) = db.execute("PRAGMA page_size").fetchone()
    with path.open("r+b") as file:
        _tell_of_a_change(file)
        file.seek((page - 1) * size)
        file.write(b"\xff" * size)


def _tell_of_a_change(file: BinaryIO) -> None:
    """Without a write-ahead log, connections read pages again when the number of changes has moved."""
    file.seek(_CHANGES)
    changes = int.from_bytes(file.read(4), "big") + 1
    for place in (_CHANGES, _SIZE_IS_RIGHT_AT):
        file.seek(place)
        file.write(changes.to_bytes(4, "big"))
