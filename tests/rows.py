"""Tables whose rows share their fixtures: a refusal changes nothing, and to open the services takes most of a test.

With `pytest.mark.parametrize` each row is a test of its own with fixtures of its own. That is for rows that change what
the next row would find.
"""

import inspect
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

Test = Callable[..., Coroutine[Any, Any, None]]


def each_row(names: str | tuple[str, ...], rows: Iterable[Any]) -> Callable[[Test], Test]:
    """Run the test with each row, one after the other; it takes arguments as with `pytest.mark.parametrize`."""
    taken = tuple(rows)
    columns = (names,) if isinstance(names, str) else names
    assert taken, "a table without rows checks nothing"

    def decorate(test: Test) -> Test:
        async def with_each_row(**fixtures: Any) -> None:
            for row in taken:
                values = dict(zip(columns, (row,) if isinstance(names, str) else row, strict=True))
                try:
                    await test(**fixtures, **values)
                except BaseException as error:
                    error.add_note(f"in the row {values}")
                    raise

        signature = inspect.signature(test)
        others = [one for name, one in signature.parameters.items() if name not in columns]
        with_each_row.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
        for attribute in ("__name__", "__qualname__", "__doc__", "__module__"):
            setattr(with_each_row, attribute, getattr(test, attribute))
        return with_each_row

    return decorate
