"""A Trunkline forwards to another one and to a mosquitto, with kills; a long form is tests/e2e/forward_kills.py."""

from pathlib import Path

from tests.e2e.forward_kills import run
from tests.properties import in_ci


@in_ci
def test_nothing_is_lost_or_stored_twice_when_both_ends_are_killed(tmp_path: Path) -> None:
    result = run(tmp_path, 3)
    assert result.is_right, result
    assert result.messages > 0
    assert result.actions > 0
    assert result.at_broker >= result.messages
