"""Wills: when a device's will is published (reference 16.2)."""

from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import (
    MockClock,
    wait_all_tasks_blocked,
)

from broker.facts import TokenRevoked
from broker.secrets import token_hash
from protocols.mqtt.packets import Will
from tests.factories import (
    HALL,
    KITCHEN_TOKEN,
)
from tests.protocols.mqtt.peers import (
    ACCEPTED,
    ACTIONS,
    DISCONNECT,
    MESSAGES,
    ON,
    Peer,
    Server,
    connect,
    puback,
    publish,
)

HALL_MESSAGES = f"/v1.1/messages/{HALL}".encode()
OFF = b'{"state":false}'


Leave = Callable[[Server, Peer], Awaitable[None]]


async def vanish(server: Server, peer: Peer) -> None:
    await peer.stream.aclose()


async def fall_silent(server: Server, peer: Peer) -> None:
    await trio.sleep(31)


async def misbehave(server: Server, peer: Peer) -> None:
    await peer.send(b"\xf0\x00")


async def be_replaced(server: Server, peer: Peer) -> None:
    newer = await server.connected()
    await newer.expect_nothing()


async def disconnect(server: Server, peer: Peer) -> None:
    await peer.send(DISCONNECT)


async def lose_its_token(server: Server, peer: Peer) -> None:
    server.services.core.router.publish(TokenRevoked(token_hash(KITCHEN_TOKEN)))


@pytest.mark.parametrize(
    ("leave", "is_due", "topic"),
    [
        (vanish, True, MESSAGES),
        (vanish, True, ACTIONS),
        (vanish, True, HALL_MESSAGES),
        (fall_silent, True, MESSAGES[1:]),
        (misbehave, True, MESSAGES),
        (be_replaced, True, MESSAGES),
        (disconnect, False, MESSAGES),
        (lose_its_token, False, MESSAGES),
    ],
    ids=["vanished", "Actions", "another's", "silent", "misbehaved", "replaced", "disconnected", "token revoked"],
)
async def test_a_will_to_the_devices_own_topic_is_stored(
    server: Server, autojump_clock: MockClock, leave: Leave, is_due: bool, topic: bytes
) -> None:
    peer = await server.connected(keep_alive=20, will=Will(topic, OFF, 1, True))
    await leave(server, peer)
    await wait_all_tasks_blocked()
    await server.services.messages.ingest.wait_committed()
    is_own = topic in {MESSAGES, MESSAGES[1:]}
    assert await server.stored() == ([OFF.decode()] if is_due and is_own else [])


async def test_the_will_of_a_replaced_connection_is_stored_before_the_newer_ones_messages(
    server: Server, autojump_clock: MockClock
) -> None:
    await server.connected(will=Will(MESSAGES, OFF, 1, False))
    newer = await server.dial()
    await newer.send(connect(), publish(1))
    await newer.expect(ACCEPTED, puback(1))
    await wait_all_tasks_blocked()
    assert await server.stored() == [OFF.decode(), ON.decode()]


async def test_a_will_that_is_no_json_is_dropped(server: Server) -> None:
    peer = await server.connected(will=Will(MESSAGES, b"gone", 1, False))
    await peer.stream.aclose()
    await wait_all_tasks_blocked()
    assert await server.stored() == []
