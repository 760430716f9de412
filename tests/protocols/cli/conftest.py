"""Commands that are called in the process of the tests configure its log; the next test gets the former one."""

from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def _former_log() -> Iterator[None]:
    former = structlog.get_config()
    yield
    structlog.configure(**former)
