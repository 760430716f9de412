"""Database engines. Code that is special to one engine is in its modules."""

from pathlib import Path
from typing import TYPE_CHECKING, Final, Union

from storage.sql import StoreError

if TYPE_CHECKING:
    from config.settings import Settings
    from storage.engines.postgresql import PostgresqlEngine
    from storage.engines.postgresql_target import Target
    from storage.engines.sqlite import SqliteEngine
    from storage.engines.sqlite_upgrade import Progress

StoreAnywhere = Union["SqliteEngine", "PostgresqlEngine"]

#: The file of SQLite, in the state directory.
STORE: Final = "store.sqlite"


def may_have_store(settings: "Settings") -> bool:
    """False: there is no store. Of PostgreSQL `has_store` knows more, and asks the server."""
    return settings.storage.is_postgresql or (settings.state_dir / STORE).exists()


def has_store(settings: "Settings") -> bool:
    """Raises StoreError: the server cannot be asked."""
    if not settings.storage.is_postgresql:
        return (settings.state_dir / STORE).exists()
    with engine_of(settings).snapshot() as snapshot:
        return bool(snapshot.steps())


def engine_of(
    settings: "Settings", *, upgrades: bool = True, progress: "Progress | None" = None
) -> "SqliteEngine | PostgresqlEngine":
    """The engine that `storage.url` names. The other one is not imported.

    Args:
        settings: where the store is.
        upgrades: whether a store of an older version is brought to this one, or refused.
        progress: told of the schema steps of such a store.

    Raises:
        StoreError: a library is missing.
    """
    storage = settings.storage
    if not storage.is_postgresql:
        from storage.engines.sqlite import SqliteEngine  # noqa: PLC0415 - as said above

        return SqliteEngine(
            settings.state_dir / STORE, synchronous=storage.synchronous, upgrades=upgrades, progress=progress
        )
    engine, target = _postgresql()
    return engine(
        target(storage.url, storage.password_file, synchronous=storage.synchronous == "full"),
        patience_seconds=settings.cluster.patience_seconds,
        upgrades=upgrades,
        progress=progress,
    )


def engine_at(to: str, password_file: "Path | None" = None) -> "SqliteEngine | PostgresqlEngine":
    """The engine of a store that is somewhere else: at the address of a database, or in a file.

    Raises:
        StoreError: a library is missing.
    """
    if "://" in to:
        engine, target = _postgresql()
        return engine(target(to, password_file))
    from storage.engines.sqlite import SqliteEngine  # noqa: PLC0415 - as said above

    return SqliteEngine(Path(to).absolute())


def _postgresql() -> "tuple[type[PostgresqlEngine], type[Target]]":
    try:
        from storage.engines.postgresql import PostgresqlEngine  # noqa: PLC0415 - as said above
        from storage.engines.postgresql_target import Target  # noqa: PLC0415 - as said above
    except ImportError as error:
        raise StoreError(
            f"storage.url: PostgreSQL needs a library that is not here ({error}): install trunkline[postgresql]"
        ) from error
    return PostgresqlEngine, Target
