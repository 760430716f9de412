"""Named schema steps, each applied once and in order. A released step is never changed; a later step corrects it.

A step is a file in `storage/schema/`; the store remembers its name without the suffix. PostgreSQL runs the same files
(storage/engines/postgresql_schema.py), in its own words (storage/engines/postgresql_sql.py).
"""

import re
import secrets
import sqlite3
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib.resources import files
from typing import TYPE_CHECKING, Final, Protocol

from config import build
from config.mail import folded_address

_OF_INVITATIONS: Final = ("invitation", "device_share", "trial_invitation")


class _Rows(Protocol):
    def fetchall(self) -> list[tuple[object, ...]]: ...


class _Connection(Protocol):
    def execute(self, statement: str, parameters: tuple[object, ...] = ..., /) -> _Rows: ...


def fold_addresses(db: _Connection) -> None:
    """Fold all addresses, in the transaction of the step. Accounts whose address has the form of another's get none."""
    taken = set()
    # Of equal addresses the one that was proved first counts, else the oldest.
    order = "email_verified_on IS NULL, email_verified_on, created_on, key"
    for key, email in db.execute(f"SELECT key, email FROM user ORDER BY {order}").fetchall():  # noqa: S608 - constants
        folded = folded_address(str(email))
        if folded not in taken:
            taken.add(folded)
            db.execute("UPDATE user SET email_key = ? WHERE key = ?", (folded, key))
    for table in _OF_INVITATIONS:
        for (email,) in db.execute(f"SELECT DISTINCT email FROM {table}").fetchall():  # noqa: S608 - constants
            folded = folded_address(str(email))
            db.execute(f"UPDATE {table} SET email_key = ? WHERE email = ?", (folded, email))  # noqa: S608 - constants


if TYPE_CHECKING:
    from sqlite_utils import Database

_STEP: Final = re.compile(r"(\d{4}_\w+)\.sql")
_FOLDER: Final = files("storage") / "schema"
_FILES: Final = {
    found[1]: file
    for file in sorted(_FOLDER.iterdir(), key=lambda one: one.name)
    if (found := _STEP.fullmatch(file.name)) is not None
}
#: This version as operators see it, in refusals and backups: "0.1.0 (4f2c1ab6d0, schema 0041)".
VERSION: Final = f"{build.VERSION} ({', '.join(filter(None, (build.commit(), f'schema {max(_FILES)[:4]}')))})"


def names() -> list[str]:
    """All steps of this version, in their order."""
    return list(_FILES)


def statements(name: str, engine: str = "") -> tuple[list[str], bool]:
    """The statements of a step, and whether they are from a file for this engine alone, such as `….postgresql.sql`."""
    twin = _FOLDER / f"{name}.{engine}.sql"
    is_twin = bool(engine) and twin.is_file()
    text = (twin if is_twin else _FILES[name]).read_text(encoding="utf-8")
    if is_twin:
        return [text], True  # PostgreSQL finds the ends of its statements
    return [one for one in text.split(";\n") if one.strip()], False


def applied(db: sqlite3.Connection) -> list[str]:
    """The steps that this store has, in the order in which it got them."""
    if not _has_table(db, "_sqlite_migrations"):
        return []
    sql = "SELECT name FROM _sqlite_migrations WHERE migration_set = 'trunkline' ORDER BY id"
    return [name for (name,) in db.execute(sql)]


def pending(db: sqlite3.Connection) -> list[str]:
    """The steps that this store lacks, in their order."""
    has = set(applied(db))
    return [name for name in _FILES if name not in has]


def apply(db: sqlite3.Connection, *, stop_before: str | None = None) -> None:
    """Apply the steps that this store lacks, up to and without `stop_before`. Each is whole or undone. Raises
    sqlite3.Error."""
    if not pending(db):
        return
    # Imported for a new store or an upgrade alone: it takes a tenth of a start.
    with _not_imported("numpy", "pandas"):
        from sqlite_utils import Database, Migrations  # noqa: PLC0415

    steps = Migrations("trunkline")
    for name in _FILES:
        steps(name=name)(_step(name))
    steps.apply(Database(db), stop_before=stop_before)


@contextmanager
def _not_imported(*names: str) -> Iterator[None]:
    """Within the block these libraries seem not to be installed, unless they are imported already.

    sqlite_utils takes in values of theirs, which no step has: numpy is 0.1 s of processor time and 20 MB, pandas 0.6 s.
    """
    hidden = [name for name in names if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type] # None: an import fails
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


def _step(name: str) -> Callable[["Database"], None]:
    def apply_step(store: "Database", /) -> None:
        for statement in statements(name)[0]:
            store.execute(statement)
        if name == "0043_folded_addresses":
            fold_addresses(store.conn)
        if name == "0001_the_main_job":
            # The key of the message ids is in the store, so that messages keep their ids in a restored backup.
            store.execute("INSERT INTO secret (name, value) VALUES ('mid', ?)", (secrets.token_bytes(32),))

    return apply_step


def unknown_steps(db: sqlite3.Connection) -> set[str]:
    """The steps that a newer version of Trunkline has applied to this store."""
    return unknown_names(applied(db))


def unknown_names(steps: Iterable[str]) -> set[str]:
    """The names among these of steps that this version does not have."""
    return set(steps) - _FILES.keys()


def version_of(db: sqlite3.Connection) -> str:
    """The version of Trunkline that applied the last step."""
    found = db.execute("SELECT version FROM store_version").fetchone() if _has_table(db, "store_version") else None
    return str(found[0]) if found else "(a newer version)"


def note_version(db: sqlite3.Connection) -> None:
    """This version has applied the last step."""
    if version_of(db) != VERSION:
        with db:
            db.execute("INSERT OR REPLACE INTO store_version (id, version) VALUES (1, ?)", (VERSION,))


def _has_table(db: sqlite3.Connection, name: str) -> bool:
    return db.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (name,)).fetchone() is not None
