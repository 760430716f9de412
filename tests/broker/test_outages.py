"""A store that is away for long is no flood of log lines, whichever worker meets it."""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from storage.outages import Outage
from storage.sql import StoreAwayError
from tests.builders import ServicesOpener

pytestmark = pytest.mark.slow


ROOT: Final = Path(__file__).parent.parent.parent
AWAY_MINUTES: Final = 15
#: Events of what is done once in the life of a daemon.
ONCE: Final = {
    "device_tasks_not_put_back",
    "files_not_taken_into_store",
    "lease_not_given_back",
    "state_not_saved",
}


async def test_a_flapping_failure_is_told_of_twice_a_minute_at_most(autojump_clock: MockClock) -> None:
    outage = Outage("not_done")
    with capture_logs() as logs:
        for _ in range(600):
            outage.failed("away")
            outage.succeeded()
            await trio.sleep(1)
    assert Counter(line["event"] for line in logs) == {"not_done": 10, "works_again": 10}


async def test_no_worker_floods_the_log_while_the_store_is_away(
    opener: ServicesOpener, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All workers of the daemon run, and each looks at the store again and again."""
    is_away, calls = False, 0
    with capture_logs() as logs:
        async with opener() as services:
            database = services.core.database
            for name in ("write", "write_own", "read", "look_up"):
                original = getattr(database, name)

                async def failing(*given: Any, original: Any = original) -> Any:
                    nonlocal calls
                    if not is_away:
                        return await original(*given)
                    calls += 1
                    await trio.lowlevel.checkpoint()
                    raise StoreAwayError("the server does not answer")

                monkeypatch.setattr(database, name, failing)
            await trio.sleep(60)
            logs.clear()
            is_away = True
            await trio.sleep(AWAY_MINUTES * 60)
            during, after = list(logs), len(logs)
            is_away = False
            await trio.sleep(AWAY_MINUTES * 60)
            over = logs[after:]
    told = Counter(line["event"] for line in during)
    assert len(told) > 10, told
    assert max(told.values()) <= AWAY_MINUTES + 1, told
    assert calls > 5 * sum(told.values())
    # The clock of the test stands still, so some have nothing to do in between.
    over += [line for line in during if line["event"] == "works_again"]
    assert {line["after"] for line in over if line["event"] == "works_again"} == told.keys() - {"works_again"}


def _reports(path: Path) -> Iterator[str]:
    """The events that a file logs itself where it catches an error of the store."""
    text = path.read_text(encoding="utf-8")
    if "StoreError" not in text:
        return
    for handler in ast.walk(ast.parse(text)):
        if isinstance(handler, ast.ExceptHandler) and "StoreError" in ast.unparse(handler.type or ast.Pass()):
            for call in ast.walk(handler):
                if isinstance(call, ast.Call) and ast.unparse(call.func).startswith("_log."):
                    yield ast.literal_eval(call.args[0])


def test_what_meets_a_failing_store_again_and_again_tells_of_it_by_an_outage() -> None:
    found = {
        event: str(path.relative_to(ROOT))
        for folder in ("broker", "protocols", "storage")
        for path in (ROOT / folder).rglob("*.py")
        for event in _reports(path)
    }
    assert found.keys() == ONCE, found
