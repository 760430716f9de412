"""Finds SQL that CI does not run over PostgreSQL: `make statements`.

CI runs over PostgreSQL the tests with the mark `both_engines`, not all. This plugin notes the statements of each test,
and shows at the end those that no marked test runs, each with the test that can be marked for it.
"""

import re
from collections.abc import Generator
from typing import Any

import pytest

from storage.engines.postgresql_connection import PostgresqlConnection

_RUN = PostgresqlConnection._run  # each statement passes it
_NUMBERS = re.compile(r"\d+")
#: Lists of values, and of rows.
_LISTS = re.compile(r"(%s|%\(\w+\)s|\([^()]*\))(, ?(%s|%\(\w+\)s|\([^()]*\)))+")

_running = set[str]()
_marked = set[str]()
_others: dict[str, str] = {}


def _note(connection: PostgresqlConnection, sql: str, *arguments: Any, **options: Any) -> Any:
    _running.add(_LISTS.sub(r"\1, …", _NUMBERS.sub("0", " ".join(sql.split()))))
    return _RUN(connection, sql, *arguments, **options)


def pytest_configure() -> None:
    PostgresqlConnection._run = _note  # type: ignore[method-assign, assignment]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    _running.clear()
    result = yield
    if item.get_closest_marker("both_engines") is not None:
        _marked.update(_running)
    else:
        _others.update((sql, item.nodeid) for sql in _running)
    return result


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    left = {sql: test for sql, test in _others.items() if sql not in _marked}
    terminalreporter.section(
        f"{len(_marked)} statements in tests with the mark both_engines, {len(left)} only in others"
    )
    for sql, test in sorted(left.items(), key=lambda one: one[1]):
        terminalreporter.line(f"{test}\n    {sql}")
