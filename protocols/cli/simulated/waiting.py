"""Waiting for an answer on asyncio, with a time limit."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


async def within(seconds: float, answer: Awaitable[T]) -> T:
    """The answer. Raises TimeoutError when it takes longer.

    Not `asyncio.wait_for`: before Python 3.12 it may lose a cancellation that comes together with the answer, and
    then the cancelled task does not end.
    """
    async with asyncio.timeout(seconds):
        return await answer
