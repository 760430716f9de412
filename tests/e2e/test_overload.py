"""A short form of `tests/attacks/overload.py`: one user's devices send what they can, and another user's goes on.

Bounds of its times are on the median: a p99 of a second on a machine with other work says nothing.
"""

from pathlib import Path

from tests.attacks.overload import ALLOWED_MS, opened_world, overload
from tests.properties import in_ci


@in_ci
def test_memory_is_bounded_devices_share_and_the_daemon_recovers(tmp_path: Path) -> None:
    with opened_world(tmp_path) as opened:
        for protocol in ("mqtt", "coap"):
            found = overload(protocol, opened, seconds=0.5)
            assert found.is_fair, (protocol, found.rates)
            assert found.grown_mib <= 128
            assert all(one.waits for one in found.during)
            for alone, after in zip(found.alone, found.after, strict=True):
                allowed = max(ALLOWED_MS, 3 * alone.percentile(0.5))
                assert after.percentile(0.5) <= allowed, f"{protocol}\n{alone}\n{after}"
