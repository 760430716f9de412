"""A copy that an upgrade has kept is deleted a day later, also by a daemon that starts after that."""

import os
import time
from pathlib import Path

import trio
import trio.testing

from protocols.operation.store_copies import forget_copies

DAY = 86_400


def test_a_copy_is_kept_for_a_day(tmp_path: Path) -> None:
    async def forget() -> float:
        began = trio.current_time()
        await forget_copies(store)
        return trio.current_time() - began

    store = tmp_path / "store.sqlite"
    old, new = (tmp_path / f"store.sqlite.before-{number}" for number in ("0001", "0002"))
    for path, age in ((old, 2 * DAY), (new, DAY / 2)):
        path.touch()
        os.utime(path, (time.time() - age,) * 2)
    (tmp_path / "store.sqlite.compact.part").touch()
    waited = trio.run(forget, clock=trio.testing.MockClock(autojump_threshold=0))
    assert list(tmp_path.iterdir()) == []
    assert 0.4 * DAY < waited < 0.6 * DAY
