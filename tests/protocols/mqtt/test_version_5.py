"""Version 5.0 on the service's own topics: what CONNACK announces, and a reason for all that is refused."""

import json

import pytest
import trio
from paho.mqtt.packettypes import PacketTypes
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.facts import TokenRevoked
from broker.routing.connections import CloseReason
from broker.secrets import token_hash
from config.settings import Limits, Mqtt, Settings
from protocols.mqtt.packets import Will
from protocols.mqtt.values import NO_PROPERTIES, Properties
from storage.transaction import Transaction
from tests.factories import ADA_TOKEN, HALL, HALL_TOKEN, KITCHEN, KITCHEN_TOKEN, NOW_MS, World
from tests.protocols.mqtt.conftest import Runner
from tests.protocols.mqtt.packets_by_paho import from_paho
from tests.protocols.mqtt.peers import (
    ACTIONS,
    ERRORS,
    MESSAGES,
    ON,
    PINGREQ,
    Peer,
    Server,
    connect,
    disconnect_5,
    puback,
    pubcomp,
    publish,
    publish_5,
    pubrec,
    pubrel,
    refused,
    subscribe,
    subscribe_5,
    unsubscribe_5,
)
from tests.protocols.mqtt.test_exchange import act
from tests.protocols.mqtt.test_server import disable
from tests.rows import each_row

SERVICE = Properties(
    session_expiry=0,
    receive_maximum=1000,
    retain_available=0,
    maximum_packet_size=65536,
    topic_alias_maximum=0,
    wildcard_available=0,
    subscription_ids_available=0,
    shared_available=0,
)
NO_PUBLISH = "You do not have publish permission to topic"
NO_SUBSCRIBE = "You do not have subscribe permission to topic"


async def connack(peer: Peer) -> tuple[int, int, Properties]:
    """Session present, reason code and properties of the CONNACK that comes next."""
    head, body = await peer.packet()
    assert head == 0x20
    return body[0], body[1], from_paho(body[2:], PacketTypes.CONNACK)


async def ended(peer: Peer) -> tuple[int, str]:
    """Reason code and reason string of the DISCONNECT that comes next, behind which nothing comes."""
    head, body = await peer.packet()
    assert head == 0xE0
    await peer.expect_end()
    properties = from_paho(body[1:], PacketTypes.DISCONNECT) if body[1:] else NO_PROPERTIES
    assert properties == Properties(reason_string=properties.reason_string)  # no other one [MQTT-3.14.2-2]
    return body[0], properties.reason_string or ""


async def connected(
    server: Server,
    *,
    client_id: bytes = b"c",
    keep_alive: int = 0,
    will: Will | None = None,
    properties: Properties = NO_PROPERTIES,
    topics: tuple[bytes, ...] = (),
) -> Peer:
    peer = await server.dial()
    await peer.send(connect(level=5, client_id=client_id, keep_alive=keep_alive, will=will, properties=properties))
    assert (await connack(peer))[:2] == (0, 0)
    if topics:
        await peer.send(subscribe_5(*topics))
        assert await peer.packet() == (0x90, b"\x00\x01\x00" + bytes(len(topics)))
    return peer


async def test_connack_announces_what_there_is_not(server: Server) -> None:
    """reference 16.2."""
    peer = await server.dial()
    await peer.send(connect(level=5, client_id=b"c", clean=False, properties=Properties(session_expiry=60)))
    assert await connack(peer) == (0, 0, SERVICE)
    await peer.expect_nothing()


async def test_a_client_without_an_id_is_given_one_of_its_own(server: Server) -> None:
    given = []
    for device, token in ((KITCHEN, KITCHEN_TOKEN), (HALL, HALL_TOKEN)):
        peer = await server.dial()
        await peer.send(connect(device, token, level=5))
        given.append((await connack(peer))[2].assigned_client_id)
    assert None not in given
    assert len(set(given)) == 2


REFUSED_CONNECTS = [
    (connect(None, None, level=5), 0x86),
    (connect(KITCHEN, "9" * 32, level=5), 0x86),
    (connect(KITCHEN, ADA_TOKEN, level=5), 0x87),
    (connect(level=5, properties=Properties(authentication_method="x")), 0x8C),
    (bytes.fromhex("10 10 0004 4d515454 05 02 003c 03 210000 0000"), 0x82),  # receive maximum 0
    (bytes.fromhex("10 0d 0004 4d515454 05 03 003c 00 0000"), 0x81),  # the reserved flag
]


async def test_a_refused_connect_has_a_reason(server: Server) -> None:
    for packet, code in REFUSED_CONNECTS:
        peer = await server.dial()
        await peer.send(packet)
        assert (await connack(peer))[:2] == (0, code)
        await peer.expect_end()


async def test_a_disabled_device_and_a_failing_store_have_reasons(server: Server, world: World, runner: Runner) -> None:
    await disable(server, world, world.kitchen, KITCHEN)
    peer = await server.dial()
    await peer.send(connect(level=5))
    assert (await connack(peer))[1] == 0x87


class TestRateLimit:
    @pytest.fixture
    def settings(self, settings: Settings) -> Settings:
        return Settings(state_dir=settings.state_dir, limits=Limits(mqtt_device="2/8"))

    async def test_what_is_over_the_limit_is_over_quota(self, server: Server) -> None:
        peer = await connected(server)
        subscriptions = [subscribe_5(ACTIONS, ERRORS, number=number) for number in (4, 5, 6)]
        await peer.send(publish_5(1), publish_5(2), publish_5(3), *subscriptions)
        text = "DEVICE MINUTE rate limit exceeded"
        for codes in ([0, 0], [0, 0], [0x97, 0x97]):
            head, body = await peer.packet()
            while head != 0x90:
                head, body = await peer.packet()
            assert suback_of((head, body)) == (codes, text if codes[0] else "")
        await peer.packet()
        await peer.expect(puback(1), puback(2))
        assert acknowledged(await peer.packet()) == (0x40, 0x97, text)
        again = await server.dial()
        await again.send(connect(level=5))
        assert (await connack(again))[1:] == (0x97, Properties(reason_string=text))


class TestKeepAlive:
    @pytest.fixture
    def settings(self, settings: Settings) -> Settings:
        return Settings(
            state_dir=settings.state_dir,
            mqtt=Mqtt(keep_alive_max_seconds=20),
            limits=Limits(rate_limits="off", quotas="off"),
        )

    async def test_the_server_may_shorten_the_keep_alive(
        self,
        server: Server,
        autojump_clock: MockClock,  # noqa: ARG002
    ) -> None:
        for asked, given in ((0, 20), (21, 20), (20, None), (7, None)):
            await self.expect_keep_alive(server, asked, given)

    async def expect_keep_alive(self, server: Server, asked: int, given: int | None) -> None:
        peer = await server.dial()
        await peer.send(connect(level=5, client_id=b"c", keep_alive=asked))
        assert (await connack(peer))[2].server_keep_alive == given
        silent_since = trio.current_time()
        assert (await ended(peer))[0] == 0x8D
        assert trio.current_time() - silent_since == pytest.approx(1.5 * (given or asked))

    async def test_version_3_keeps_its_own(self, server: Server, autojump_clock: MockClock) -> None:  # noqa: ARG002
        peer = await server.connected(keep_alive=25)
        await trio.sleep(37)
        await peer.expect_nothing()
        await peer.expect_end()


# --- Messages -------------------------------------------------------------------------------------------------------


def acknowledged(packet: tuple[int, bytes]) -> tuple[int, int, str]:
    """First byte, reason code and reason string of PUBACK or PUBREC."""
    head, body = packet
    if not body[3:]:
        return head, body[2] if body[2:] else 0, ""
    return head, body[2], from_paho(body[3:], PacketTypes.PUBACK).reason_string or ""


def suback_of(packet: tuple[int, bytes]) -> tuple[list[int], str]:
    head, body = packet
    assert head == 0x90
    length = 1 + body[2]
    return list(body[2 + length :]), from_paho(body[2 : 2 + length], PacketTypes.SUBACK).reason_string or ""


REFUSED = {
    "invalid JSON": (publish_5(7, b"{"), 0x99, "Bad Request"),
    "no object": (publish_5(7, b"[1]"), 0x99, "Bad Request"),
    "too large": (
        publish_5(7, b"{}" + b" " * 1024),
        0x97,
        f"Plan quota exceeded for device {KITCHEN}. Reason: Max payload Size limit",
    ),
    "another topic": (publish_5(7, topic=b"lights"), 0x87, NO_PUBLISH),
    "its own actions": (publish_5(7, topic=ACTIONS), 0x87, NO_PUBLISH),
}


async def test_a_refused_message_has_a_reason_among_others_that_are_stored(server: Server) -> None:
    """reference 16.3; the connection stays open."""
    peer = await connected(server)
    for what, (packet, code, text) in REFUSED.items():
        await peer.send(publish_5(1), packet, publish_5(8))
        await peer.expect(puback(1))
        assert acknowledged(await peer.packet()) == (0x40, code, text), what
        await peer.expect(puback(8))
    assert await server.stored() == [ON.decode()] * 2 * len(REFUSED)


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_a_message_to_a_topic_with_wildcards_ends_the_connection(server: Server, qos: int) -> None:
    """Other brokers do the same: its sender meant something else, and would never hear of it with QoS 0."""
    peer = await connected(server)
    await peer.send(publish_5(1), publish_5(7, qos=qos, topic=b"a/+"), publish_5(8))
    await peer.expect(puback(1))
    assert await ended(peer) == (0x90, "PUBLISH to a topic with wildcards [MQTT-3.3.2-2]")
    assert await server.stored() == [ON.decode()]


async def test_a_refused_message_of_qos_2_ends_with_its_reason(server: Server) -> None:
    peer = await connected(server)
    await peer.send(publish_5(7, b"[", qos=2), publish_5(8, qos=2))
    assert acknowledged(await peer.packet()) == (0x50, 0x99, "Bad Request")
    await peer.expect(pubrec(8))
    await peer.send(publish_5(7, qos=2))  # the id is free, and this is another message
    await peer.expect(pubrec(7))
    await peer.send(pubrel(7), pubrel(8), pubrel(9))
    await peer.expect(pubcomp(7), pubcomp(8), b"\x70\x03\x00\x09\x92")
    assert await server.stored() == [ON.decode()] * 2


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_a_message_with_properties_is_stored_as_any_other(server: Server, qos: int) -> None:
    peer = await connected(server, topics=(ERRORS,))
    told = Properties(
        payload_format=1,
        message_expiry=1,
        content_type="application/json",
        response_topic="answers",
        correlation_data=b"7",
        user_properties=(("a", "b"), ("a", "c")),
    )
    await peer.send(publish_5(7, qos=qos, properties=told, retain=True), publish_5(8), publish_5(9, properties=told))
    await peer.expect(puback(7) if qos == 1 else b"", puback(8), puback(9), pubrec(7) if qos == 2 else b"")
    assert await server.stored() == [ON.decode()] * 3


def timed(number: int, *times: str, qos: int = 1) -> bytes:
    return publish_5(number, qos=qos, properties=Properties(user_properties=tuple(("ts", one) for one in times)))


async def times_of(server: Server) -> list[int]:
    def read(tx: Transaction) -> list[int]:
        return [row["ts"] for row in tx.connection.execute("SELECT ts FROM message ORDER BY position")]

    return await server.services.core.database.read(read)


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_the_user_property_ts_is_the_time_of_the_message(server: Server, qos: int) -> None:
    """reference 16.3: in whatever order messages with and without it come."""
    peer = await connected(server)
    now = NOW_MS + 60_000
    own = [timed(2, "5", qos=qos), timed(3, str(now), qos=qos), timed(4, "7.9", qos=qos)]
    await peer.send(publish_5(1), *own, publish_5(5))
    between = [puback(number) for number in (2, 3, 4)] if qos == 1 else []
    await peer.expect(puback(1), *between, puback(5), *([pubrec(2), pubrec(3), pubrec(4)] if qos == 2 else []))
    assert await times_of(server) == [NOW_MS, 5, now, 7, NOW_MS]


@each_row(
    ("times", "text"),
    [
        (("yesterday",), "Invalid ts value"),
        (("",), "Invalid ts value"),
        (("-1",), "Invalid ts value"),
        (("5", "5"), "Invalid ts value"),
        ((str(NOW_MS + 60_001),), "Invalid ts value (in future)"),
        (("9" * 40,), "Invalid ts value (in future)"),
    ],
)
async def test_a_time_that_post_does_not_take_refuses_the_message(
    server: Server, times: tuple[str, ...], text: str
) -> None:
    peer = await connected(server, topics=(ERRORS,))
    await peer.send(timed(7, *times), timed(8, *times, qos=2))
    for _ in range(2):
        topic, payload = await peer.expect_delivery()
        assert (topic, json.loads(payload.removeprefix(b"\0"))["error"]["message"]) == (ERRORS, text)
    assert acknowledged(await peer.packet()) == (0x40, 0x83, text)
    assert acknowledged(await peer.packet()) == (0x50, 0x83, text)
    assert await server.stored() == []


async def test_a_peer_that_wants_no_reasons_gets_codes_only(server: Server) -> None:
    peer = await connected(server, properties=Properties(request_problem_information=0))
    await peer.send(publish_5(7, b"["), subscribe_5(b"a"))
    assert suback_of(await peer.packet()) == ([0x87], "")
    assert acknowledged(await peer.packet()) == (0x40, 0x99, "")


async def test_no_packet_is_larger_than_the_peer_takes(server: Server) -> None:
    peer = await connected(server, properties=Properties(maximum_packet_size=64), topics=(ACTIONS, ERRORS))
    await act(server.services)  # does not fit
    await peer.send(publish_5(7, b"["), subscribe_5(b"a", number=2))
    assert suback_of(await peer.packet()) == ([0x87], NO_SUBSCRIBE)
    assert acknowledged(await peer.packet()) == (0x40, 0x99, "Bad Request")
    await peer.expect_nothing()
    assert server.services.routing.connections.statistics().actions_dropped == 1


# --- Subscriptions --------------------------------------------------------------------------------------------------


async def test_each_filter_has_a_reason(server: Server) -> None:
    peer = await connected(server)
    await peer.send(subscribe_5(ACTIONS, MESSAGES, b"lights", b"#", b"$share/g/a", b"/v1.1/+/" + KITCHEN.encode()))
    assert suback_of(await peer.packet()) == ([0, 0x87, 0x87, 0xA2, 0x9E, 0xA2], NO_SUBSCRIBE)
    await peer.send(unsubscribe_5(ACTIONS, b"lights", ACTIONS))
    assert await peer.packet() == (0xB0, b"\x00\x01\x00\x00\x11\x11")


async def test_actions_and_errors_have_no_properties(server: Server) -> None:
    peer = await connected(server, topics=(ACTIONS, ERRORS))
    await act(server.services)
    assert await peer.packet() == (0x30, len(ACTIONS).to_bytes(2) + ACTIONS + b'\x00{"actions":[{"name":"setOn"}]}')
    await peer.send(publish_5(1, b"[", qos=0))
    head, body = await peer.packet()
    assert (head, body[: 3 + len(ERRORS)]) == (0x30, len(ERRORS).to_bytes(2) + ERRORS + b"\x00")
    assert b'"code":400' in body


# --- The end --------------------------------------------------------------------------------------------------------

# Inputs of broker fuzzers; the same bytes close a connection of 3.1.1 without a word, unless they are right there.
FAULTS = {
    "a second CONNECT": (connect(level=5), 0x82),
    "packet id 0": (publish_5(0), 0x81),
    "QoS 3": (b"\x36\x06\x00\x01t\x00\x01\x00", 0x81),
    "a fifth length byte": (b"\x30\xff\xff\xff\xff\x01", 0x81),
    "a packet that is too large": (b"\x30\xff\xff\xff\x7f", 0x95),
    "a topic of 65,535 bytes": (publish_5(topic=b"t" * 65535), 0x95),
    "a topic that is not UTF-8": (publish_5(topic=b"\xff"), 0x81),
    "a topic with U+0000": (publish_5(topic=b"t\x00"), 0x81),
    "no topic": (publish_5(topic=b""), 0x82),
    "a topic alias": (publish_5(properties=Properties(topic_alias=1)), 0x94),
    "a subscription without a filter": (b"\x82\x03\x00\x01\x00", 0x81),
    "an empty filter": (subscribe_5(b""), 0x81),
    "51 filters": (subscribe_5(*[b"a"] * 51), 0x97),
    "a subscription identifier": (subscribe_5(ACTIONS, properties=Properties(subscription_ids=(7,))), 0xA1),
    "a packet of servers": (b"\x20\x03\x00\x00\x00", 0x81),
    "packet type 0": (b"\x00\x00", 0x81),
    "AUTH": (b"\xf0\x00", 0x82),
    "session expiry in DISCONNECT alone": (disconnect_5(0, Properties(session_expiry=1)), 0x82),
}


async def test_a_fault_ends_the_connection_with_its_reason(server: Server) -> None:
    for what, (packet, code) in FAULTS.items():
        peer = await connected(server)
        await peer.send(PINGREQ, packet, PINGREQ)
        await peer.expect(b"\xd0\x00")
        found, text = await ended(peer)
        assert (found, text != "") == (code, True), what


async def test_a_pubrel_before_its_pubrec_ends_the_connection(server: Server, runner: Runner) -> None:
    peer = await connected(server)
    runner.hold_commits()
    await peer.send(publish_5(7, qos=2), pubrel(7))
    await wait_all_tasks_blocked()
    runner.commits.set()
    await peer.expect(pubrec(7))
    assert (await ended(peer))[0] == 0x82


async def test_another_packet_before_connect_ends_the_connection_without_a_word(server: Server) -> None:
    for first in (PINGREQ, publish_5(), subscribe_5(b"a"), disconnect_5(), b"\xf0\x00"):
        peer = await server.dial()
        await peer.send(first)
        await peer.expect_end()


async def test_what_answers_nothing_does_no_harm(server: Server) -> None:
    peer = await connected(server)
    older = await server.connected(HALL, HALL_TOKEN)
    for unsolicited, answer, answer_3 in (
        (puback(7), b"", b""),
        (pubcomp(7), b"", b""),
        (pubrel(7), b"\x70\x03\x00\x07\x92", pubcomp(7)),
        (pubrec(7), b"\x62\x03\x00\x07\x92", b""),
    ):
        await peer.send(unsolicited, publish_5())
        await peer.expect(answer, puback())
        await older.send(unsolicited, PINGREQ)
        await older.expect(answer_3, b"\xd0\x00")


async def test_more_messages_than_the_receive_maximum_end_the_connection(server: Server, runner: Runner) -> None:
    peer = await connected(server)
    runner.hold_commits()
    await peer.send(*(publish_5(number) for number in range(1, 1002)))
    await wait_all_tasks_blocked()
    runner.commits.set()
    await peer.expect(*(puback(number) for number in range(1, 1002)))
    assert (await ended(peer))[0] == 0x93


async def test_a_newer_connection_of_any_version_takes_over(server: Server) -> None:
    first = await connected(server)
    second = await server.connected()
    assert await ended(first) == (0x8E, "replaced by a newer connection")
    third = await connected(server)
    await second.expect_end()
    fourth = await connected(server, client_id=b"another")
    assert (await ended(third))[0] == 0x8E
    await fourth.expect_nothing()


async def test_the_broker_says_why_it_ends_a_connection(server: Server, world: World) -> None:
    peer = await connected(server)
    server.services.core.router.publish(TokenRevoked(token_hash(KITCHEN_TOKEN)))
    assert await ended(peer) == (0x87, CloseReason.TOKEN_REVOKED.value)
    peer = await connected(server)
    server.services.routing.connections.close_all()
    assert await ended(peer) == (0x8B, CloseReason.SHUTDOWN.value)
    peer = await connected(server)
    await disable(server, world, world.kitchen, KITCHEN)
    assert await ended(peer) == (0x98, CloseReason.DEVICE_DISABLED.value)


@pytest.mark.parametrize(("reason", "is_due"), [(0x00, False), (0x04, True), (0x81, True)])
async def test_a_disconnect_may_ask_for_the_will(server: Server, reason: int, is_due: bool) -> None:
    peer = await connected(server, will=Will(MESSAGES, ON, 1, True, Properties(will_delay=60)))
    await peer.send(disconnect_5(reason))
    await peer.expect_end()
    await server.services.messages.ingest.wait_committed()
    assert await server.stored() == ([ON.decode()] if is_due else [])


async def test_the_versions_stand_side_by_side(server: Server) -> None:
    newer = await connected(server)
    older = await server.connected(HALL, HALL_TOKEN)
    await newer.send(publish_5(1))
    await older.send(publish(2, topic=f"/v1.1/messages/{HALL}".encode()), subscribe(b"#"))
    await newer.expect(puback(1))
    await older.expect(b"\x90\x03\x00\x01\x80", puback(2))
    third = await server.dial()
    await third.send(connect(level=4, token="9" * 32))
    await third.expect(refused(4))
