"""The simulated devices wait on asyncio, where a cancellation and an answer may come together."""

import asyncio

import pytest

from protocols.cli.simulated.waiting import answered_within


def test_a_cancellation_that_comes_with_the_answer_is_kept() -> None:
    async def answer_and_cancel() -> bool:
        answer = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(answered_within(60, answer))
        await asyncio.sleep(0)  # it waits now
        answer.set_result(None)
        task.cancel()
        await asyncio.wait([task])
        return task.cancelled()

    assert asyncio.run(answer_and_cancel())


def test_an_answer_in_time() -> None:
    async def answer() -> bytes:
        return b"answer"

    assert asyncio.run(answered_within(60, answer())) == b"answer"


def test_no_answer_in_time() -> None:
    async def wait_in_vain() -> None:
        await answered_within(0, asyncio.get_running_loop().create_future())

    with pytest.raises(TimeoutError):
        asyncio.run(wait_in_vain())
