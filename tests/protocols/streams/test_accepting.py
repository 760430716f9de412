"""Listeners when many connections come at once, and when the process has no free descriptors."""

import os
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import wait_all_tasks_blocked

from broker.life import Life
from config.limits import TURNS_BETWEEN_CONNECTIONS
from config.settings import Address
from protocols.streams.listeners import Stream, serve_tcp
from tests.fakes import new_refusals

Sockets = list[trio.socket.SocketType]


@contextmanager
def no_free_descriptor() -> Iterator[None]:
    """The process can open no other file or socket."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            os.dup(0)
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def echo(stream: Stream) -> None:
    while data := await stream.receive_some():
        await stream.send_all(data)


async def ask(connection: trio.socket.SocketType) -> bytes:
    """The echo; nothing when the listener closes the connection."""
    with suppress(ConnectionError), trio.fail_after(5):
        await connection.send(b"hello")
        return await connection.recv(100)
    return b""


async def test_without_descriptors_new_connections_are_closed_at_once_and_others_go_on(
    nursery: trio.Nursery,
) -> None:
    address: Address = await nursery.start(
        lambda task_status: serve_tcp(
            Address("127.0.0.1", 0),
            echo,
            protocol="test",
            refusals=new_refusals(),
            life=Life(),
            connections=nursery,
            task_status=task_status,
        )
    )
    clients = [trio.socket.socket() for _ in range(21)]
    established, later, *refused = clients
    try:
        await established.connect((address.host, address.port))
        assert await ask(established) == b"hello"
        with capture_logs() as logs:
            with no_free_descriptor():
                for client in refused:
                    await client.connect((address.host, address.port))
                    assert await ask(client) == b""
                assert await ask(established) == b"hello"
                await wait_all_tasks_blocked()
            await later.connect((address.host, address.port))
            started = trio.current_time()
            assert await ask(later) == b"hello"
        assert trio.current_time() - started < 1
        assert [(entry["event"], entry["protocol"]) for entry in logs] == [("connections_refused", "test")]
        assert logs[0]["reason"] == "Too many open files"
    finally:
        for client in clients:
            client.close()


async def test_between_two_connections_that_came_at_once_others_have_their_turns(nursery: trio.Nursery) -> None:
    turn, served = 0, []

    async def note(_stream: Stream) -> None:
        served.append(turn)

    address: Address = await nursery.start(
        lambda task_status: serve_tcp(
            Address("127.0.0.1", 0),
            note,
            protocol="test",
            refusals=new_refusals(),
            life=Life(),
            connections=nursery,
            task_status=task_status,
        )
    )
    clients = [socket.create_connection((address.host, address.port)) for _ in range(10)]
    try:
        with trio.fail_after(5):
            while len(served) < len(clients):
                turn += 1
                await trio.lowlevel.checkpoint()
    finally:
        for client in clients:
            client.close()
    assert all(after - before >= TURNS_BETWEEN_CONNECTIONS for before, after in pairwise(served))
