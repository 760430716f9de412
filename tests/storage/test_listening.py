"""The connection that listens for what other nodes have stored."""

from collections.abc import Iterator
from typing import Any

import pytest

from storage.engines.postgresql_insertion import CHANNEL, MESSAGES_CHANNEL
from storage.engines.postgresql_listening import Listening
from storage.engines.postgresql_target import Connection
from storage.peers import HeardOf
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


async def test_a_connection_that_comes_after_the_end_is_closed(made: tuple[Listening, list[Connection]]) -> None:
    """A thread may be connecting when the loop ends."""
    listening, connections = made
    listening.close()
    assert await listening.wait(0, messages=False) == HeardOf(True, True)
    assert [one.closed for one in connections] == [True]


async def test_one_connection_is_kept(made: tuple[Listening, list[Connection]]) -> None:
    listening, connections = made
    assert await listening.wait(0, messages=False) == HeardOf(True, True)
    assert await listening.wait(0, messages=False) == HeardOf()
    assert [one.closed for one in connections] == [False]


async def test_messages_alone_are_heard_of_by_who_asks_for_them(made: tuple[Listening, list[Connection]]) -> None:
    listening, _ = made
    await listening.wait(0, messages=False)
    with server().target("postgres").connect(name="tests") as other:

        def tell(channel: str, instance: str) -> None:
            other.execute(f"NOTIFY {channel}, '{instance}'".encode())

        async def heard(*, messages: bool) -> HeardOf:
            found = HeardOf()
            while found == HeardOf():
                found = await listening.wait(30, messages=messages)
            return found

        tell(MESSAGES_CHANNEL, "that")
        tell(CHANNEL, "this")
        tell(CHANNEL, "that")
        assert await heard(messages=False) == HeardOf(changes=True)
        assert await heard(messages=True) == HeardOf(changes=True, messages=True)  # it begins to
        tell(MESSAGES_CHANNEL, "this")
        tell(MESSAGES_CHANNEL, "that")
        assert await heard(messages=True) == HeardOf(messages=True)


async def test_a_wait_is_interrupted(made: tuple[Listening, list[Connection]]) -> None:
    """Or the first message that somebody needs would come after the wait."""
    listening, _ = made
    await listening.wait(0, messages=False)
    listening.interrupt()
    assert await listening.wait(300, messages=False) == HeardOf()
