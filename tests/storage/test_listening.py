"""The connection that listens for what other nodes have stored."""

from collections.abc import Iterator
from typing import Any

import pytest

from storage.engines.postgresql_listening import Listening
from storage.engines.postgresql_target import Connection
from tests.postgresql import server


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Listening, list[Connection]]]:
    target, connections = server().target("postgres"), list[Connection]()
    known = type(target).connect

    def connect(self: object, **given: Any) -> Connection:
        connections.append(known(target, **given))
        return connections[-1]

    monkeypatch.setattr(type(target), "connect", connect)
    listening = Listening(target, "this")
    yield listening, connections
    listening.close()


def test_a_connection_that_comes_after_the_end_is_closed(made: tuple[Listening, list[Connection]]) -> None:
    """A thread may be connecting when the loop ends."""
    listening, connections = made
    listening.close()
    assert listening.wait(0)
    assert [one.closed for one in connections] == [True]


def test_one_connection_is_kept(made: tuple[Listening, list[Connection]]) -> None:
    listening, connections = made
    assert listening.wait(0)
    assert not listening.wait(0)
    assert [one.closed for one in connections] == [False]
