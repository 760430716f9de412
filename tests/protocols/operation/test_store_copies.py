"""A copy that an upgrade has kept is deleted a day later, also by a daemon that starts after that."""

import errno
import os
import time
from pathlib import Path

import pytest
import structlog
import trio
import trio.testing

from protocols.operation.store_copies import forget_copies
from storage.engines.sqlite_compact import unfinished_copy

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


async def test_a_file_that_cannot_be_deleted_is_logged_and_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store.sqlite"
    unfinished = unfinished_copy(store)
    unfinished.touch()

    def unlink(self: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EIO, "Input/output error", str(self))

    monkeypatch.setattr(Path, "unlink", unlink)
    with structlog.testing.capture_logs() as logged:
        await forget_copies(store)
    assert unfinished.exists()
    assert logged == [
        {"event": "file_not_deleted", "log_level": "warning", "file": str(unfinished), "reason": "Input/output error"}
    ]
