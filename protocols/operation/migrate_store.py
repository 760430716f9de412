"""The store goes from one engine to the other, while no daemon runs: `trunkline migrate-store` (reference 27.26)."""

import os
from contextlib import closing
from pathlib import Path

import msgspec

from broker.secrets import Vault
from broker.store_key import opens_secrets
from config.settings import Settings
from protocols.errors import StateError, require_store
from protocols.operation.state import open_state
from storage.engines import STORE, StoreAnywhere, engine_at, engine_of
from storage.engines.sqlite import SqliteEngine
from storage.sql import StoreError, StoreFullError
from storage.store_copy import CopyConnection, CopyReport, Tell, copy_store
from storage.tables import check_finished


class Migrated(msgspec.Struct, frozen=True):
    report: CopyReport
    source: str
    target: str
    url: str  # what `storage.url` is to be, without a password
    is_in_place: bool  # the file is where the daemon looks for it


def copy_store_to(
    settings: Settings, to: str, password_file: Path | None = None, key_path: Path | None = None, *, tell: Tell
) -> Migrated:
    """Copy the store into another one, and compare both. Nothing is deleted.

    Args:
        settings: with the store.
        to: the address of a database of PostgreSQL, or the path of a file of SQLite.
        password_file: of the address.
        key_path: where the key is, if not in the state directory.
        tell: told how far it is.

    Raises:
        StateInUseError: a daemon runs. StateError: there is no store, or the key is another store's.
        StoreError: one of the stores cannot be used, or the target has a store already.
    """
    with open_state(settings, key_path=key_path) as state:
        source, target = engine_of(settings), engine_at(to, password_file)
        require_store(settings)
        if str(source) == str(target):
            raise StateError(f"{target}: is the store that `storage.url` names: name another one")
        source.migrate()
        with closing(source.open(read_only=True)) as connection:
            check_finished(connection, str(source))
            _require_alone(connection, source)
            if not opens_secrets(connection, Vault(*state.keys)):
                raise StateError("the key opens none of the store's secrets: it belongs to another store")
            target.migrate()
            require_unused(target)
            try:
                report = copy_store(connection, target, str(target), tell)
            except StoreFullError as error:
                raise StoreFullError(f"{target}: {error}: make room, and run it again: it goes on there") from error
        if (file := path_of(to)) is not None:
            _give_to_owner(file, state.directory)
        url = "sqlite" if isinstance(target, SqliteEngine) else target.target.without_secret(to)
        return Migrated(report, str(source), str(target), url, file == (state.directory / STORE))


def path_of(to: str) -> Path | None:
    """The file that `to` names; None for the address of a database."""
    return None if "://" in to else Path(to).absolute()


def require_unused(store: StoreAnywhere) -> None:
    """Raises StoreError: another machine's daemon uses the database."""
    with closing(store.open(read_only=True)) as connection:
        _require_alone(connection, store)


def _require_alone(connection: CopyConnection, store: StoreAnywhere) -> None:
    """Raises StoreError: another machine's daemon uses the database."""
    if others := connection.tables().users():
        raise StoreError(f"{store}: {others} connections of a daemon are open: stop it first")


def _give_to_owner(file: Path, directory: Path) -> None:
    """The daemon's user must be able to open what root has made."""
    owner = directory.stat()
    if os.geteuid() == 0:
        for path in (file, *file.parent.glob(f"{file.name}-*")):
            os.chown(path, owner.st_uid, owner.st_gid)
