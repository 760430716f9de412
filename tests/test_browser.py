"""The browser of the tests."""

import os
import select

import pytest

from tests.browser import PATIENCE_SECONDS, Chromium, running_chromium

pytestmark = pytest.mark.slow


def test_chromium_ends_with_the_tests() -> None:
    with running_chromium() as window:
        process = os.pidfd_open(window.process.pid)
    assert select.select([process], [], [], PATIENCE_SECONDS)[0] == [process]
    os.close(process)


def test_a_condition_is_not_looked_at_again_once_it_was_true(window: Chromium) -> None:
    """That of a click prepares the page: a second look would have it clicked twice."""
    window.fresh()
    window.run("window.looks = 0")
    assert window.until("(window.looks += 1) > 1")
    looks = window.run_async(
        "const [done] = arguments; document.body.append('changed');"
        "document.dispatchEvent(new Event('readystatechange'));"
        "setTimeout(() => done(window.looks), 50)"
    )
    assert looks == 2
