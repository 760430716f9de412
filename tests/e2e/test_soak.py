"""Many sockets, some of which stop reading: nobody else notices (tests/benchmarks/websocket.py has the large one)."""

from pathlib import Path

from tests.benchmarks.websocket import soak
from tests.daemon import running_daemon


def test_subscribers_that_stop_reading_cost_the_others_nothing(tmp_path: Path) -> None:
    with running_daemon(tmp_path, devices=60) as daemon:
        found = soak(daemon, 1.0, sockets=300, steps=2)
    assert found.received == [found.acknowledged] * 15
    assert set(found.ends) <= {"closed with 1013", "hung up"}
    # A queue without a bound would hold five times what was sent.
    assert found.resident_kib[-1] < 2 * found.resident_kib[0]
