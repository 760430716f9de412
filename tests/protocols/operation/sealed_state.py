"""A state directory with secrets in every sealed column."""

from pathlib import Path

from config.settings import Settings
from protocols.operation.state import open_state
from storage.sealed import SEALED_COLUMNS
from tests.broker.test_resealing import put_secrets
from tests.stores import make_store


def make_sealed_state(folder: Path, secrets_each: int) -> Path:
    """Make a state with a number of secrets in each column, sealed with its first key; return its folder."""
    with open_state(Settings(state_dir=folder)) as state:
        make_store(state.database)
        for column in SEALED_COLUMNS:
            put_secrets(state.database, column, secrets_each, state.keys[0])
    return folder
