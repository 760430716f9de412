"""Tables whose rows share their fixtures: a refusal changes nothing, and to open the services takes most of a test.

With `pytest.mark.parametrize` each row is a test of its own with fixtures of its own. That is for rows that change what
the next row would find, and for the rows of short tables: to collect, hand out and report a test takes a millisecond.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from textwrap import shorten
from typing import Any, Final, TypeVar

import pytest

Result = TypeVar("Result")
_Values = dict[str, Any]

_Row: Final = type(pytest.param())
_NOTE_CHARACTERS: Final = 1_000


def each_row(
    names: str | tuple[str, ...], rows: Iterable[Any], *, ids: Sequence[str] | None = None
) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Run the test with each row, one after the other; it takes arguments as with `pytest.mark.parametrize`.

    Of two tables, each row of the lower one is run with each row of the upper one. `ids` are for the report of a
    failure, beside the values.
    """
    columns = (names,) if isinstance(names, str) else names
    given = list(rows)
    assert given, "a table without rows checks nothing"
    values = [dict(zip(columns, _values(row, is_one=isinstance(names, str)), strict=True)) for row in given]
    taken = list(zip(values, ids or map(_id_of, given), strict=True))

    def decorate(test: Callable[..., Any]) -> Callable[..., Any]:
        async def await_each_row(*bound: Any, **fixtures: Any) -> None:
            failures = _Failures()
            for values, id_ in taken:
                with failures.of_row(values, id_):
                    await test(*bound, **fixtures, **values)
            failures.report()

        def call_each_row(*bound: Any, **fixtures: Any) -> None:
            failures = _Failures()
            for values, id_ in taken:
                with failures.of_row(values, id_):
                    test(*bound, **fixtures, **values)
            failures.report()

        with_each_row: Callable[..., Any] = await_each_row if inspect.iscoroutinefunction(test) else call_each_row
        signature = inspect.signature(test)
        others = [one for name, one in signature.parameters.items() if name not in columns]
        with_each_row.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
        for attribute in ("__name__", "__qualname__", "__doc__", "__module__"):
            setattr(with_each_row, attribute, getattr(test, attribute))
        if hasattr(test, "pytestmark"):
            with_each_row.pytestmark = test.pytestmark  # type: ignore[attr-defined]
        return with_each_row

    return decorate


class _Failures:
    """Of all rows: a table says at once everything that is wrong in it."""

    def __init__(self) -> None:
        self._errors: list[BaseException] = []

    @contextmanager
    def of_row(self, values: _Values, id_: str) -> Iterator[None]:
        try:
            yield
        except pytest.skip.Exception:
            self.report()  # what failed before is not skipped
            raise
        except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - raised again at the end
            error.add_note(shorten(f"in the row {id_} {values}" if id_ else f"in the row {values}", _NOTE_CHARACTERS))
            self._errors.append(error)

    def report(self) -> None:
        if len(self._errors) == 1:
            raise self._errors[0]
        if self._errors:
            raise BaseExceptionGroup(f"{len(self._errors)} rows failed", self._errors)


def _id_of(row: Any) -> str:
    return str(row.id or "") if isinstance(row, _Row) else ""


def _values(row: Any, *, is_one: bool) -> tuple[Any, ...]:
    if isinstance(row, _Row):
        return tuple(row.values)
    return (row,) if is_one else row
