"""Many sockets, some of which stop reading without an effect on the others.

tests/benchmarks/websocket.py has the large soak.
"""

from pathlib import Path

from tests.benchmarks.websocket import soak
from tests.daemon import MANY_CONNECTIONS, running_daemon
from tests.properties import in_ci


@in_ci
def test_subscribers_that_stop_reading_do_not_delay_the_others(tmp_path: Path) -> None:
    with running_daemon(tmp_path, devices=60, settings=MANY_CONNECTIONS) as daemon:
        found = soak(daemon, 1.0, sockets=150, steps=2, enough=15_000)
    assert found.received == [found.acknowledged] * 15
    assert len(found.ends) == 5
    # The close frame may stand behind data that the subscriber does not read; then only the end of the stream comes.
    assert set(found.ends) <= {"closed with 1013", "hung up"}
    # A queue without a bound would hold five times what was sent.
    assert found.resident_kib[-1] < 2 * found.resident_kib[0]
