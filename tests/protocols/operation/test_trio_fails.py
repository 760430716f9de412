"""When trio itself fails, nobody hears of the writer's thread any more: the process has an end all the same."""

import signal

import pytest
import trio

from protocols.daemon import ends_without_trio


@pytest.fixture
def alarms(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    found: list[int] = []
    monkeypatch.setattr(signal, "alarm", found.append)
    return found


def test_the_process_ends_when_a_task_of_trio_fails(alarms: list[int]) -> None:
    async def main() -> None:
        with ends_without_trio():
            trio.lowlevel.spawn_system_task(fail)
            try:
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):  # as the wait for the writer's commit
                    while not alarms:
                        await trio.lowlevel.checkpoint()

    async def fail() -> None:
        await trio.lowlevel.checkpoint()
        raise MemoryError

    with pytest.raises(trio.TrioInternalError):
        trio.run(main)
    assert alarms == [10]


def test_an_end_without_failure_has_no_alarm(alarms: list[int]) -> None:
    async def main() -> None:
        with ends_without_trio():
            await trio.lowlevel.checkpoint()

    trio.run(main)
    assert alarms == []
