"""Conditions that were checked before a write and may have changed: checked again in its transaction."""

from collections.abc import Callable, Sequence
from contextvars import ContextVar, Token
from functools import partial
from typing import Any, Final, TypeVar

T = TypeVar("T")
#: Takes the transaction. Raises what the write then raises.
Condition = Callable[[Any], None]
_conditions: Final[ContextVar[list[Condition] | None]] = ContextVar("conditions", default=None)


class UnderConditions:
    """Each `Database.write` in the block first checks the conditions passed to `require`, or writes nothing."""

    __slots__ = ("_token",)
    _token: Token[list[Condition] | None]

    def __enter__(self) -> None:
        self._token = _conditions.set([])

    def __exit__(self, *_error: object) -> None:
        _conditions.reset(self._token)


def require(condition: Condition) -> None:
    """Outside of `UnderConditions`, nothing is required."""
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
