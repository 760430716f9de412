"""Tables whose rows share their fixtures: a refusal changes nothing, and to open the services takes most of a test.

With `pytest.mark.parametrize` each row is a test of its own with fixtures of its own. That is for rows that change what
the next row would find.
"""

import inspect
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final

import pytest

Test = Callable[..., Coroutine[Any, Any, None]]

_Row: Final = type(pytest.param())


def each_row(names: str | tuple[str, ...], rows: Iterable[Any]) -> Callable[[Test], Test]:
    """Run the test with each row, one after the other; it takes arguments as with `pytest.mark.parametrize`.

    Of two tables, each row of the lower one is run with each row of the upper one.
    """
    columns = (names,) if isinstance(names, str) else names
    taken = [dict(zip(columns, _values(row, is_one=isinstance(names, str)), strict=True)) for row in rows]
    assert taken, "a table without rows checks nothing"

    def decorate(test: Test) -> Test:
        async def with_each_row(*bound: Any, **fixtures: Any) -> None:
            for values in taken:
                try:
                    await test(*bound, **fixtures, **values)
                except BaseException as error:
                    error.add_note(f"in the row {values}")
                    raise

        signature = inspect.signature(test)
        others = [one for name, one in signature.parameters.items() if name not in columns]
        with_each_row.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
        for attribute in ("__name__", "__qualname__", "__doc__", "__module__"):
            setattr(with_each_row, attribute, getattr(test, attribute))
        if hasattr(test, "pytestmark"):
            with_each_row.pytestmark = test.pytestmark  # type: ignore[attr-defined]
        return with_each_row

    return decorate


def _values(row: Any, *, is_one: bool) -> tuple[Any, ...]:
    if isinstance(row, _Row):
        return tuple(row.values)
    return (row,) if is_one else row
