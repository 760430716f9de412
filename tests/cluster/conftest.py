"""What a test of several nodes leaves open is told as its own."""

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _nothing_is_left_open() -> Iterator[None]:
    """A socket that a client leaves to the garbage collector would be told as a failure of a later test."""
    yield
    gc.collect()
