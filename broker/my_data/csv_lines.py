"""Reads CSV (RFC 4180) piece by piece, within bounds, and names each wrong line by its number.

A record that cannot be read spoils no other one: reading goes on at the line behind its first one.
"""

import re
from collections.abc import Iterator
from typing import Final

import msgspec
from msgspec.structs import replace

#: A record that is longer is wrong: 64 KiB, more than a message may have.
RECORD_BYTES: Final = 64 * 1024
COLUMNS_MAX: Final = 1_000
_QUOTE_INSIDE: Final = "has a quote inside a cell, or text behind its quotes"
_BOM: Final = b"\xef\xbb\xbf"
#: Empty lines, which are many in no time.
_EMPTY: Final = re.compile(rb"(?:\r?\n)++")
_CELL: Final = re.compile(r'(?:"((?:[^"]|"")*+)"|([^",\r\n]*+))(,|\r?\n?\Z)')


class Cell(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`is_quoted` tells an empty text from no value."""

    text: str
    is_quoted: bool = False


class CsvRecord(msgspec.Struct, frozen=True, gc=False):
    """A record that begins at the line `number`, the first one being 1, and ends before the byte `end` of the file.

    There the line `behind` begins. `wrong` is why it cannot be read.
    """

    number: int
    end: int
    behind: int
    cells: list[Cell] = []
    wrong: str = ""


class CsvLines:
    """Records of a file that comes in pieces. `position` and `number` are where it begins to read: a byte, and the
    number of the line there."""

    def __init__(self, position: int = 0, number: int = 1) -> None:
        self._buffer = bytearray()
        self._begins_file = position == 0
        self._position, self._number = position, number  # of the first byte in the buffer
        self._looked = 0  # bytes of the buffer that were looked at for the end of the record
        self._quotes = self._newlines = 0  # among them

    def feed(self, piece: bytes) -> Iterator[CsvRecord]:
        """The records that are whole with this piece. Empty lines are left out."""
        self._buffer += piece
        if self._begins_file and len(self._buffer) >= len(_BOM):
            self._drop_mark()
        while (record := self._next()) is not None:
            if record.cells or record.wrong:
                yield record

    def end(self) -> Iterator[CsvRecord]:
        """The last records, when the file has ended."""
        self._drop_mark()
        while self._buffer:
            if (record := self._next()) is None:  # also behind a line that could not be read: each line once
                if self._quotes_in(len(self._buffer)) % 2:
                    record = self._taken(self._first_line(), "a quote is not closed")
                else:
                    record = self._taken(len(self._buffer))
            if record.cells or record.wrong:
                yield record

    def _quotes_in(self, length: int) -> int:
        return self._buffer.count(b'"', 0, length)

    def _drop_mark(self) -> None:
        self._begins_file = False
        if self._position == 0 and self._buffer.startswith(_BOM):
            del self._buffer[: len(_BOM)]
            self._position = len(_BOM)

    def _next(self) -> CsvRecord | None:
        """The next record, if its end has come."""
        if not self._looked and (empty := _EMPTY.match(self._buffer)) is not None:
            self._number += self._buffer.count(b"\n", 0, empty.end())
            self._position += empty.end()
            del self._buffer[: empty.end()]
        while (newline := self._buffer.find(b"\n", self._looked)) >= 0:
            self._quotes += self._buffer.count(b'"', self._looked, newline)
            self._looked = newline + 1
            if self._looked > RECORD_BYTES:
                break
            if self._quotes % 2 == 0:
                return self._taken(self._looked)
        if len(self._buffer) <= RECORD_BYTES:
            return None
        first = self._buffer.find(b"\n") + 1
        if first == 0:  # drop what has come of the line; the rest is one more wrong record
            first = len(self._buffer)
        return self._taken(first, f"is longer than {RECORD_BYTES} bytes, or a quote is not closed")

    def _first_line(self) -> int:
        return self._buffer.find(b"\n") + 1 or len(self._buffer)

    def _taken(self, length: int, wrong: str = "") -> CsvRecord:
        raw = bytes(self._buffer[:length])
        if not wrong and 0 < (first := raw.find(b"\n") + 1) < length and not _is_well_quoted(raw):
            # A quote inside a cell has taken the lines behind it along.
            return self._taken(first, _QUOTE_INSIDE)
        del self._buffer[:length]
        number = self._number
        self._number += raw.count(b"\n")
        self._position += length
        self._looked = self._quotes = 0
        record = CsvRecord(number, self._position, self._number, wrong=wrong)
        return record if wrong else _read(raw, record)


def _is_well_quoted(raw: bytes) -> bool:
    text, at = raw.decode(errors="replace"), 0
    while (match := _CELL.match(text, at)) is not None:
        if match[3] != ",":
            return True
        at = match.end()
    return False


def _read(raw: bytes, record: CsvRecord) -> CsvRecord:
    if b"\0" in raw:
        return replace(record, wrong="has a NUL: the file must be UTF-8")
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return replace(record, wrong="is not UTF-8")
    if not text.strip("\r\n"):
        return record
    cells: list[Cell] = []
    at = 0
    while True:
        match = _CELL.match(text, at)
        if match is None:
            return replace(record, wrong=_QUOTE_INSIDE)
        quoted, plain, behind = match.groups()
        cells.append(Cell(plain) if quoted is None else Cell(quoted.replace('""', '"'), is_quoted=True))
        if behind != ",":
            return replace(record, cells=cells)
        if len(cells) >= COLUMNS_MAX:
            return replace(record, wrong=f"has more than {COLUMNS_MAX} cells")
        at = match.end()
