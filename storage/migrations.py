"""Named schema steps, each applied once and in order. A released step is never changed; a later step corrects it.

A step is a file in `storage/schema/`; the store remembers its name without the suffix.
"""

import secrets
from importlib.resources import files

import sqlite_utils
from sqlite_utils import Migrations

migrations = Migrations("trunkline")


def _step(name: str, statements: str) -> None:
    def apply(db: sqlite_utils.Database) -> None:
        for statement in statements.split(";\n"):
            if statement.strip():
                db.execute(statement)
        if name == "0001_the_main_job":
            # The key of the message ids is in the store, so that messages keep their ids in a restored backup.
            db["secret"].insert({"name": "mid", "value": secrets.token_bytes(32)})  # type: ignore[union-attr]

    migrations(name=name)(apply)


for _file in sorted((files("storage") / "schema").iterdir(), key=lambda found: found.name):
    if _file.name.endswith(".sql"):
        _step(_file.name.removesuffix(".sql"), _file.read_text(encoding="utf-8"))
