"""Waiting on asyncio: for an answer, with a time limit, and for the first of several tasks."""

import asyncio
from collections.abc import Awaitable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


async def answered_within(seconds: float, answer: Awaitable[T]) -> T:
    """The answer. Raises TimeoutError when it takes longer.

    Not `asyncio.wait_for`: before Python 3.12 it may lose a cancellation that comes together with the answer, and
    then the cancelled task does not end.
    """
    async with asyncio.timeout(seconds):
        return await answer


async def first_to_end(*conversations: Coroutine[Any, Any, None]) -> set[asyncio.Task[None]]:
    """Run the conversations until one of them ends, and cancel the others. Returns the tasks that ended."""
    tasks = {asyncio.create_task(conversation) for conversation in conversations}
    try:
        ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await task
    return ended
