"""A short form of `tests/attacks/signed_in.py`: what one user asks for delays another one's answers but little.

The bounds are those of the attack, on the median: a p99 of a second on a machine with other work says nothing.
"""

import time
from collections.abc import Iterator

import pytest

from tests.attacks.measuring import running, waits_of
from tests.attacks.signed_in import ALLOWED_MS, World, attack_of, reads_last_messages, world

_MESSAGES = 25_000  # a replay answers 10,000
_SECONDS = 0.5


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("signed-in"), messages=_MESSAGES) as opened:
        yield opened


def test_a_replay_answers_what_was_ready_and_goes_on_from_there(shared: World) -> None:
    body = {"startDate": shared.start_ms, "endDate": shared.end_ms}
    path = f"/rules/{shared.rule()}/replay"
    first = shared.call("POST", path, body)["data"]
    assert 0 < first["messages"] <= 10_000
    assert not first["isComplete"]
    assert shared.start_ms < first["until"] < shared.end_ms
    rest = shared.call("POST", path, {**body, "startDate": first["until"]})["data"]
    assert rest["until"] > first["until"]


@pytest.mark.parametrize("case", ["searches", "last-messages-with-a-field", "replays-and-explanations"])
def test_another_user_hardly_waits(shared: World, case: str) -> None:
    alone = waits_of(reads_last_messages, shared.daemon, _SECONDS)
    with running(attack_of(case, shared), 1):
        during = waits_of(reads_last_messages, shared.daemon, _SECONDS)
    assert during.percentile(0.5) <= max(ALLOWED_MS, 3 * alone.percentile(0.5)), f"{alone}\n{during}"


def test_the_daemon_stops_beside_simulations(shared: World) -> None:
    attack = attack_of("replays-and-explanations", shared)
    with running(attack, 1):
        began = time.monotonic()
        assert shared.daemon.stop() == 0
    assert time.monotonic() - began < 10
