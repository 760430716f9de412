"""The live feed as Server-Sent Events, with clients that others have written, over kills of client and daemon."""

from pathlib import Path

from tests.browser import Chromium
from tests.e2e.stream_kills import run
from tests.properties import in_ci


@in_ci
def test_no_kill_makes_a_stream_miss_or_repeat_a_message(tmp_path: Path, window: Chromium) -> None:
    window.fresh()
    expected, got = run(tmp_path, window, messages=120, kills=1)
    assert len(expected) >= 120
    for name, mids in got.items():
        assert mids == expected, name
