"""A state directory with secrets in every sealed column."""

from contextlib import closing
from pathlib import Path

from config.settings import Settings
from protocols.operation.state import open_state
from storage.engines import engine_of
from storage.sealed import SEALED_COLUMNS
from tests.broker.test_resealing import put_secrets
from tests.stores import begin_store, storage_of


def make_sealed_state(folder: Path, secrets_each: int) -> Path:
    """Make a state with a number of secrets in each column, sealed with its first key; return its folder."""
    settings = Settings(state_dir=folder, storage=storage_of(folder))
    with open_state(settings) as state:
        begin_store(settings)
        with closing(engine_of(settings).open(read_only=False)) as store:
            for column in SEALED_COLUMNS:
                put_secrets(store, column, secrets_each, state.keys[0])
    return folder
