"""Named schema steps, each applied once and in order. A released step is never changed; a later step corrects it.

A step is a file in `storage/schema/`; the store remembers its name without the suffix.
"""

import secrets
from collections.abc import Iterable
from importlib.resources import files
from typing import Final

import sqlite_utils
from sqlite_utils import Migrations

from config import build
from storage.folded_addresses import fold_addresses

migrations = Migrations("trunkline")


def _step(name: str, statements: str) -> None:
    def apply(db: sqlite_utils.Database) -> None:
        for statement in statements.split(";\n"):
            if statement.strip():
                db.execute(statement)
        if name == "0043_folded_addresses":
            fold_addresses(db.conn)
        if name == "0001_the_main_job":
            # The key of the message ids is in the store, so that messages keep their ids in a restored backup.
            db["secret"].insert({"name": "mid", "value": secrets.token_bytes(32)})  # type: ignore[union-attr]

    migrations(name=name)(apply)


_FILES: Final = [file for file in (files("storage") / "schema").iterdir() if file.name.endswith(".sql")]
_NAMES: Final = {file.name.removesuffix(".sql") for file in _FILES}
#: This version as operators see it, in refusals and backups: "0.1.0 (4f2c1ab6d0, schema 0041)".
VERSION: Final = f"{build.VERSION} ({', '.join(filter(None, (build.commit(), f'schema {max(_NAMES)[:4]}')))})"
for _file in sorted(_FILES, key=lambda found: found.name):
    _step(_file.name.removesuffix(".sql"), _file.read_text(encoding="utf-8"))


def unknown_steps(db: sqlite_utils.Database) -> set[str]:
    """The steps that a newer version of Trunkline has applied to this store."""
    return unknown_names(step.name for step in migrations.applied(db))


def unknown_names(steps: Iterable[str]) -> set[str]:
    """Those of these steps that this version does not have."""
    return set(steps) - _NAMES


def version_of(db: sqlite_utils.Database) -> str:
    """The version of Trunkline that applied the last step."""
    found = db.execute("SELECT version FROM store_version").fetchone() if "store_version" in db.table_names() else None
    return str(found[0]) if found else "(a newer version)"


def note_version(db: sqlite_utils.Database) -> None:
    if version_of(db) != VERSION:
        db["store_version"].upsert({"id": 1, "version": VERSION}, pk="id")  # type: ignore[union-attr]
