"""The browser of the tests."""

import os
import select

import pytest

from tests.browser import PATIENCE_SECONDS, running_chromium

pytestmark = pytest.mark.slow


def test_chromium_ends_with_the_tests() -> None:
    with running_chromium() as window:
        process = os.pidfd_open(window.process.pid)
    assert select.select([process], [], [], PATIENCE_SECONDS)[0] == [process]
    os.close(process)
