"""A short form of `tests/attacks/overload.py`: one user's devices send what they can, and another user's goes on.

Bounds of its times are on the median: a p99 of a second on a machine with other work says nothing.
"""

from pathlib import Path

import pytest

from tests.attacks.overload import ALLOWED_MS, opened_world, overload


@pytest.mark.parametrize("protocol", ["mqtt", "coap"])
def test_memory_is_bounded_devices_share_and_the_daemon_recovers(tmp_path: Path, protocol: str) -> None:
    with opened_world(tmp_path) as opened:
        found = overload(protocol, opened, seconds=1.0)
    assert found.is_fair, found.rates
    assert found.damage.grown_mib <= 128
    alone, after = (one.percentile(0.5) for one in (found.damage.alone, found.damage.after))
    assert found.damage.during.waits
    assert after <= max(ALLOWED_MS, 3 * alone), f"{found.damage.alone}\n{found.damage.after}"
