"""What was checked before a write and may be different by its time: checked once more in its transaction."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, Final, TypeVar

T = TypeVar("T")
#: Takes the transaction. Raises what the write then raises.
Condition = Callable[[Any], None]
_conditions: Final[ContextVar[list[Condition] | None]] = ContextVar("conditions", default=None)


@contextmanager
def under_conditions() -> Iterator[None]:
    """What is passed to `require` in the block holds in every `Database.write` of the block, or nothing is written."""
    token = _conditions.set([])
    try:
        yield
    finally:
        _conditions.reset(token)


def require(condition: Condition) -> None:
    """Outside of `under_conditions`, nothing is required."""
    if (conditions := _conditions.get()) is not None:
        conditions.append(condition)


def conditional(work: Callable[[Any], T]) -> Callable[[Any], T]:
    """The work of a write, behind what this task requires."""
    conditions = _conditions.get()
    return partial(_after, tuple(conditions), work) if conditions else work


def _after(conditions: Sequence[Condition], work: Callable[[Any], T], tx: Any) -> T:
    for condition in conditions:
        condition(tx)
    return work(tx)
