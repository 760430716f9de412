"""A short form of `tests/attacks/signed_in.py`: what one user asks for delays another one's answers but little.

The bounds are those of the attack, on the median: a p99 of a second on a machine with other work says nothing.
"""

import time
from pathlib import Path

from tests.attacks.measuring import running, waits_of
from tests.attacks.signed_in import ALLOWED_MS, World, attack_of, reads_last_messages, world
from tests.properties import in_ci

_MESSAGES = 10_500  # a replay answers 10,000
_SECONDS = 0.3


@in_ci  # two seconds of load, measured
def test_another_user_hardly_waits_and_the_daemon_stops_at_once(tmp_path: Path) -> None:
    """A replay answers what was ready, and goes on from there."""
    with world(tmp_path, messages=_MESSAGES) as opened:
        _replay_in_parts(opened)
        alone = waits_of(reads_last_messages, opened.daemon, _SECONDS)
        for case in ("searches", "replays-and-explanations"):
            with running(attack_of(case, opened), 1):
                during = waits_of(reads_last_messages, opened.daemon, _SECONDS)
                began = time.monotonic()
                if case == "replays-and-explanations":
                    assert opened.daemon.stop() == 0
            assert time.monotonic() - began < 10
            assert during.percentile(0.5) <= max(ALLOWED_MS, 3 * alone.percentile(0.5)), f"{case}\n{alone}\n{during}"


def _replay_in_parts(opened: World) -> None:
    body = {"startDate": opened.start_ms, "endDate": opened.end_ms}
    path = f"/rules/{opened.rule()}/replay"
    first = opened.call("POST", path, body)["data"]
    assert 0 < first["messages"] <= 10_000
    assert not first["isComplete"]
    assert opened.start_ms < first["until"] < opened.end_ms
    rest = opened.call("POST", path, {**body, "startDate": first["until"]})["data"]
    assert rest["isComplete"]
    assert first["messages"] + rest["messages"] >= _MESSAGES
