"""Copies what can be read of a damaged store into a new store, table by table. The damaged one is only read."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from storage.damage import first_readable
from storage.engines.quarantine import ENTRY_TABLES, LOG_TABLES, SET_ASIDE
from storage.engines.sqlite_references import mend_references
from storage.sql import StoreError

#: The highest row number; the end of a gap behind which nothing can be read.
LAST: Final = 2**63 - 1
_ROWS_AT_ONCE: Final = 5_000
_Row = tuple[Any, ...]


class SalvagedTable(msgspec.Struct, frozen=True):
    """`gaps`: ranges of row numbers, first and last, in which nothing could be read; a gap may have had no row.

    `refused`: rows that were read and cannot be in the new store, because a value is there already, or what they belong
    to is lost.
    """

    name: str
    copied: int
    gaps: tuple[tuple[int, int], ...]
    refused: int

    @property
    def is_whole(self) -> bool:
        return not self.gaps and not self.refused


def salvage(damaged: Path, new: Path) -> list[SalvagedTable]:
    """Copy every row that can be read; return what became of each table.

    Raises:
        StoreError: `new` exists, its disk is full, or the list of the tables itself cannot be read.
    """
    try:
        new.touch(mode=0o600, exist_ok=False)
    except FileExistsError as error:
        raise StoreError(f"{new}: exists already; move it away") from error
    except OSError as error:
        raise StoreError(f"{new}: {error.strerror}") from error
    try:
        with closing(_opened_to_read(damaged)) as source, closing(_opened_new(new)) as target:
            return _Salvage(source, target).run()
    except BaseException as error:  # whatever it is: no half of a store must stay; raised again
        with suppress(OSError):
            new.unlink()
        if isinstance(error, sqlite3.Error):
            raise StoreError(f"{damaged}: {error}") from error
        raise


def _opened_to_read(path: Path) -> sqlite3.Connection:
    # Not even the write-ahead log goes into a file that is opened like this.
    return _opened(f"{path.absolute().as_uri()}?mode=ro", "cache_size=-65536")


def _opened_new(path: Path) -> sqlite3.Connection:
    return _opened(
        path.absolute().as_uri(), "auto_vacuum=INCREMENTAL", "journal_mode=WAL", "synchronous=FULL", "foreign_keys=OFF"
    )


def _opened(uri: str, *pragmas: str) -> sqlite3.Connection:
    connection = sqlite3.connect(uri, uri=True, isolation_level=None)
    try:
        for pragma in pragmas:
            connection.execute(f"PRAGMA {pragma}")
    except BaseException:  # whatever it is: the connection must not stay open; raised again
        connection.close()
        raise
    return connection


class _Salvage:
    def __init__(self, source: sqlite3.Connection, target: sqlite3.Connection) -> None:
        self._source = source
        self._target = target
        self._met_damage = False

    def run(self) -> list[SalvagedTable]:
        schema = self._source.execute(
            "SELECT type, name, sql FROM sqlite_schema WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite!_%' ESCAPE '!'"
        ).fetchall()
        tables = {name: sql for kind, name, sql in schema if kind == "table"}
        # Unique indexes refuse rows while they are copied; the others are made faster afterwards.
        unique = [sql for kind, _, sql in schema if kind == "index" and sql.upper().startswith("CREATE UNIQUE")]
        others = [sql for kind, _, sql in schema if kind == "index" and sql not in unique]
        for sql in (*(sql for name, sql in tables.items() if _home(name) == name), *unique):
            self._target.execute(sql)
        found = [self._copy(name, _home(name)) for name in tables if name not in ENTRY_TABLES]
        self._correct_log()
        for sql in others:
            self._target.execute(sql)
        orphans = mend_references(self._target).deleted
        return [replace(one, refused=one.refused + orphans[one.name]) for one in found]

    def _copy(self, name: str, home: str) -> SalvagedTable:
        about = self._target.execute(f"PRAGMA table_info({home})").fetchall()
        names = [str(column[1]) for column in about]
        key = [str(column[1]) for column in sorted(about, key=lambda column: column[5]) if column[5]]
        gaps: list[tuple[int, int]] = []
        if self._has_rowid(home):
            names.insert(0, "rowid")
            rows = self._by_rowid(name, ", ".join(names), gaps)
        else:
            rows = self._clustered(name, ", ".join(names), key, gaps)
        insert = f"INSERT OR IGNORE INTO {home} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"  # noqa: S608
        copied = read = 0
        while batch := list(islice(rows, _ROWS_AT_ONCE)):
            self._target.execute("BEGIN")
            copied += self._target.executemany(insert, batch).rowcount
            self._target.execute("COMMIT")
            read += len(batch)
        return SalvagedTable(name, copied, tuple(gaps), read - copied)

    def _has_rowid(self, table: str) -> bool:
        try:
            self._target.execute(f"SELECT rowid FROM {table}")  # noqa: S608 - a name of the schema
        except sqlite3.OperationalError:
            return False
        return True

    def _by_rowid(self, table: str, names: str, gaps: list[tuple[int, int]]) -> Iterator[_Row]:
        sql = f"SELECT {names} FROM {table} WHERE rowid >= ? ORDER BY rowid"  # noqa: S608 - names of the schema
        at: int | None = 0
        while at is not None:
            for row in self._until_damage(sql, f"{sql} LIMIT 1", (at,), (0,)):
                yield row
                at = row[0] + 1
            at = self._behind_gap(f"{sql} LIMIT 1", at, gaps) if self._met_damage else None

    def _clustered(self, table: str, names: str, key: Sequence[str], gaps: list[tuple[int, int]]) -> Iterator[_Row]:
        """The rows of a table without row numbers, by the first column of its key, which is a number.

        Rows with the same number are many: behind damage among them, they are read from their end, too.
        """
        listed = f"SELECT {names} FROM {table} WHERE {key[0]}"  # noqa: S608 - names of the schema
        order, reverse = ", ".join(key), f"{' DESC, '.join(key)} DESC"
        at_place = f"({', '.join(key)}) {{}} ({', '.join('?' * len(key))})"
        places = [names.split(", ").index(name) for name in key]
        next_one = f"{listed} >= 0 AND {at_place.format('>')} ORDER BY {order} LIMIT 1"
        one_before = f"{listed} >= 0 AND {at_place.format('<')} ORDER BY {reverse} LIMIT 1"
        sql = f"{listed} >= ? ORDER BY {order}"
        at: int | None = 0
        while at is not None:
            # The last rows of the number: one of them ends the way back. All would be millions, of years of a device.
            given: set[_Row] = set()
            before: set[_Row] = set()
            number = at
            for row in self._until_damage(sql, next_one, (at,), places):
                if row[places[0]] != number:
                    number, given, before = row[places[0]], set(), set()
                if len(given) >= _ROWS_AT_ONCE:
                    given, before = set(), given
                given.add(row)
                yield row
            if not self._met_damage:
                return
            at = self._behind_gap(f"{sql} LIMIT 1", number, gaps)
            for one in range(number, min(LAST if at is None else at, number + _ROWS_AT_ONCE)):
                backwards = f"{listed} = ? ORDER BY {reverse}"
                for row in self._until_damage(backwards, one_before, (one,), places):
                    if row in given or row in before or row[places[0]] != one:
                        break
                    yield row

    def _until_damage(self, sql: str, one_more: str, parameters: tuple[int], places: Sequence[int]) -> Iterator[_Row]:
        """The rows of a statement up to damage. The driver reads a row ahead, so the last ones are read one by one.

        `one_more` finds the row after the one whose values at `places` it gets.
        """
        self._met_damage = False
        at: tuple[Any, ...] = (parameters[0] - 1,) if len(places) == 1 else ()
        try:
            for row in self._source.execute(sql, parameters):
                at = tuple(row[place] for place in places)
                yield row
        except sqlite3.DatabaseError:
            self._met_damage = True
        if not self._met_damage or not at:
            return
        self._met_damage = False
        try:
            while row := self._source.execute(one_more, (at[0] + 1,) if len(at) == 1 else at).fetchone():
                at = tuple(row[place] for place in places)
                yield row
        except sqlite3.DatabaseError:
            self._met_damage = True

    def _behind_gap(self, sql: str, at: int, gaps: list[tuple[int, int]]) -> int | None:
        """The first number behind `at` from which rows can be read; None when there is none."""
        found = first_readable(partial(self._can_read, sql), at, LAST)
        gaps.append((at, LAST if found is None else found - 1))
        return found

    def _can_read(self, sql: str, at: int) -> bool:
        try:
            self._source.execute(sql, (at,)).fetchone()
        except sqlite3.DatabaseError:
            return False
        return True

    def _correct_log(self) -> None:
        """No position is used twice, the next start makes the index, and retention looks at all rows again."""
        if not self._target.execute("SELECT 1 FROM sqlite_schema WHERE name = 'counter'").fetchone():
            return
        highest = max(
            self._target.execute(f"SELECT coalesce(max(position), 0) FROM {table}").fetchone()[0]  # noqa: S608
            for table in LOG_TABLES
        )
        self._target.execute("INSERT OR IGNORE INTO counter (name, value) VALUES ('head', 0)")
        self._target.execute("UPDATE counter SET value = max(value, ?) WHERE name = 'head'", (highest,))
        self._target.execute("UPDATE counter SET value = 0 WHERE name = 'indexed'")
        self._target.execute("DELETE FROM retention")


def _home(name: str) -> str:
    """The table that a table was before it was set aside."""
    return name.removeprefix(SET_ASIDE).partition("_")[2] if name.startswith(SET_ASIDE) else name
