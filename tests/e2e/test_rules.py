"""Rules of the real daemon: exactly once inside the service, whatever is killed when; and the commands about them."""

from pathlib import Path

from tests.e2e.rule_kills import run


def test_no_kill_makes_a_rule_miss_or_repeat_an_action(tmp_path: Path) -> None:
    expected, sent, applied = run(tmp_path, kills=3)
    assert sent == expected
    assert applied == expected
    assert sum(expected.values()) > 10, "there was something to miss"
