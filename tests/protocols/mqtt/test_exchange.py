"""An authenticated device: its messages and subscriptions, and the Actions and errors that it gets."""

import json

import pytest
import trio
from trio.testing import (
    MockClock,
    lockstep_stream_one_way_pair,
    memory_stream_one_way_pair,
    wait_all_tasks_blocked,
)

from broker.services import Services
from config.limits import PACKETS_PER_TURN
from config.settings import Limits, Mqtt, Settings
from protocols.mqtt.encoding import encode_publish
from tests.factories import BOBS, HALL, HALL_TOKEN, KITCHEN, NOW_MS
from tests.fakes import FakeClock
from tests.protocols.mqtt.conftest import Runner
from tests.protocols.mqtt.peers import (
    ACCEPTED,
    ACTIONS,
    ERRORS,
    MESSAGES,
    ON,
    PINGREQ,
    PINGRESP,
    Peer,
    Server,
    connect,
    puback,
    pubcomp,
    publish,
    publish_5,
    pubrec,
    pubrel,
    suback,
    subscribe,
    unsuback,
    unsubscribe,
)
from tests.rows import each_row

SET_ON = '{"actions":[{"name":"setOn"}]}'


async def act(services: Services, device_id: str = KITCHEN, data: str = SET_ON) -> None:
    """An Action, sent and stored."""
    device = await services.devices.registry.find(device_id)
    services.messages.ingest.submit_action(device, device, data.encode())
    await services.messages.ingest.wait_committed()


# --- Fairness -------------------------------------------------------------------------------------------------------


async def test_one_connection_takes_bounded_turns(server: Server) -> None:
    flood, device = await server.connected(HALL, HALL_TOKEN), await server.connected()
    topic = f"/v1.1/messages/{HALL}".encode()
    await flood.send(publish(payload=b'{"state":false}', topic=topic, qos=0) * 10 * PACKETS_PER_TURN)
    await device.send(publish(1))
    await device.expect(puback(1))
    await flood.expect_nothing()
    stored = await server.stored()
    assert len(stored) == 10 * PACKETS_PER_TURN + 1
    assert stored.index('{"state":true}') <= 3 * PACKETS_PER_TURN


async def test_all_pings_of_one_write_are_answered(server: Server) -> None:
    peer = await server.connected()
    await peer.send(PINGREQ * 3 * PACKETS_PER_TURN)
    await peer.expect(PINGRESP * 3 * PACKETS_PER_TURN)
    assert server.services.limits.overhead.statistics().delayed >= 2 * PACKETS_PER_TURN


async def test_too_many_filters_end_the_connection(server: Server) -> None:
    peer = await server.connected()
    await peer.send(subscribe(*[b"a"] * 13_000))
    await peer.expect_end()


# --- Messages -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("qos", "answers"), [(0, []), (1, [puback(7)]), (2, [pubrec(7)])])
async def test_a_message_is_stored_once_with_any_qos(server: Server, qos: int, answers: list[bytes]) -> None:
    peer = await server.connected()
    await peer.send(publish(7, qos=qos))
    await peer.expect(*answers)
    if qos == 2:
        await peer.send(pubrel(7))
        await peer.expect(pubcomp(7))
    await peer.expect_nothing()
    await server.services.messages.ingest.wait_committed()
    assert await server.stored() == [ON.decode()]


@pytest.mark.parametrize("topic", [MESSAGES, MESSAGES[1:]])
async def test_the_leading_slash_may_be_missing(server: Server, topic: bytes) -> None:
    peer = await server.connected()
    await peer.send(publish(topic=topic))
    await peer.expect(puback())
    assert await server.stored() == [ON.decode()]


async def test_retain_has_no_meaning(server: Server, autojump_clock: MockClock) -> None:
    peer = await server.connected()
    await peer.send(encode_publish(MESSAGES, ON, qos=1, packet_id=b"\x00\x01", retain=True))
    await peer.expect(puback())
    again = await server.connected()
    await again.send(subscribe(MESSAGES, ACTIONS))
    await again.expect(suback(0x80, 0))
    await again.expect_nothing()


async def test_acknowledgements_wait_for_the_commit(server: Server, runner: Runner) -> None:
    peer = await server.connected()
    runner.hold_commits()
    await peer.send(publish(1), publish(2, qos=2), publish(3, b"[]"), publish(4))
    await peer.expect_nothing()
    await wait_all_tasks_blocked()
    assert await server.stored() == []
    runner.commits.set()
    await peer.expect(puback(1), puback(3), puback(4), pubrec(2))
    assert len(await server.stored()) == 3


async def test_acknowledgements_keep_the_order_of_the_messages(server: Server, runner: Runner) -> None:
    peer = await server.connected()
    runner.hold_commits()
    for number in (5, 3, 4):
        await peer.send(publish(number, b"[]" if number == 3 else ON))
        await wait_all_tasks_blocked()
    runner.commits.set()
    await peer.expect(puback(5), puback(3), puback(4))


async def test_a_qos_2_message_that_is_sent_again_is_stored_once(server: Server, runner: Runner) -> None:
    peer = await server.connected()
    runner.hold_commits()
    await peer.send(publish(1, qos=2), publish(1, qos=2, dup=True))
    await peer.expect_nothing()
    runner.commits.set()
    await peer.expect(pubrec(1))
    await peer.send(publish(1, qos=2, dup=True))
    await peer.expect(pubrec(1))
    await peer.send(pubrel(1), pubrel(1))
    await peer.expect(pubcomp(1), pubcomp(1))
    assert len(await server.stored()) == 1
    await peer.send(publish(1, qos=2))  # from here on it is a new message
    await peer.expect(pubrec(1))
    assert len(await server.stored()) == 2


async def test_a_qos_1_message_that_is_sent_again_is_stored_again(server: Server) -> None:
    peer = await server.connected()
    await peer.send(publish(1), publish(1, dup=True))
    await peer.expect(puback(1), puback(1))
    assert len(await server.stored()) == 2


# --- Refused messages -----------------------------------------------------------------------------------------------

TOO_LARGE = f"Plan quota exceeded for device {KITCHEN}. Reason: Max payload Size limit"
NO_TOPIC = "You do not have publish permission to topic"
LARGEST = b'{"text":"' + b"x" * 1013 + b'"}'

REFUSED: dict[str, tuple[bytes, bytes, int, str]] = {
    "1,025 bytes": (MESSAGES, LARGEST + b" ", 413, TOO_LARGE),
    "1,025 bytes of blanks": (MESSAGES, b"{}" + b" " * 1023, 413, TOO_LARGE),
    "no JSON": (MESSAGES, b"{", 400, "Bad Request"),
    "no UTF-8": (MESSAGES, b'{"text":"\xff"}', 400, "Bad Request"),
    "nothing": (MESSAGES, b"", 400, "Bad Request"),
    "an array": (MESSAGES, b"[1]", 400, "Bad Request"),
    "a number": (MESSAGES, b"1", 400, "Bad Request"),
    "two objects": (MESSAGES, b"{}{}", 400, "Bad Request"),
    "another device's topic": (MESSAGES.replace(KITCHEN.encode(), HALL.encode()), ON, 403, NO_TOPIC),
    "another owner's device": (MESSAGES.replace(KITCHEN.encode(), BOBS.encode()), ON, 403, NO_TOPIC),
    "an unknown topic": (b"lights", ON, 403, NO_TOPIC),
    "two slashes": (b"/" + MESSAGES, ON, 403, NO_TOPIC),
    "its own actions topic": (ACTIONS, SET_ON.encode(), 403, NO_TOPIC),
    "its own errors topic": (ERRORS, ON, 403, NO_TOPIC),
}


@each_row(("topic", "payload", "code", "message"), REFUSED.values())
@each_row("qos", [0, 1, 2])
async def test_a_refused_message_is_acknowledged_and_reported(
    server: Server, qos: int, topic: bytes, payload: bytes, code: int, message: str
) -> None:
    peer, before = await server.connected(), await server.stored()
    refused, answer = publish(7, payload, qos=qos, topic=topic), {0: b"", 1: puback(7), 2: pubrec(7)}[qos]
    await peer.send(refused)  # before the subscription there is no report
    await peer.expect(answer)
    if qos == 2:
        await peer.send(pubrel(7))
        await peer.expect(pubcomp(7))
    await peer.send(subscribe(ERRORS))
    await peer.expect(suback(0))
    await peer.send(refused)
    await peer.expect_error(code, message)
    await peer.expect(answer)
    await peer.send(publish(8))
    await peer.expect(puback(8))
    assert sorted(await server.stored()) == sorted([*before, ON.decode()])


@each_row("level", [3, 4, 5])
@each_row("qos", [0, 1, 2])
async def test_the_owner_sees_each_message_to_a_topic_that_nobody_may_use(
    server: Server, fake_clock: FakeClock, level: int, qos: int
) -> None:
    """Also one with wildcards, which ends the connection."""
    published, kitchen = publish_5 if level == 5 else publish, await server.services.devices.registry.find(KITCHEN)
    forbidden = [topic for topic, _, _, message in REFUSED.values() if message == NO_TOPIC]
    for topic, status, text in (*((one, 403, NO_TOPIC) for one in forbidden), (b"a/+", 400, "topic with wildcards")):
        peer = await server.dial()
        await peer.send(connect(level=level, client_id=b"a"))
        await peer.packet()
        await peer.send(published(7, qos=qos, topic=topic))
        await wait_all_tasks_blocked()
        seen = server.services.messages.ingest.refused.of(kitchen)[0]
        assert (seen.at_ms, seen.status, seen.actor) == (fake_clock.now, status, f"device {KITCHEN}"), topic
        assert text in seen.text
        fake_clock.advance(1)


async def test_a_message_of_1024_bytes_is_taken(server: Server) -> None:
    peer = await server.connected()
    assert len(LARGEST) == 1024
    await peer.send(publish(1, LARGEST))
    await peer.expect(puback(1))
    assert len(await server.stored()) == 1


async def test_a_message_without_known_fields_is_acknowledged_and_told_once_a_second(server: Server) -> None:
    """reference 9.7"""
    peer = await server.connected(topics=[ERRORS])
    lost = publish(1, b'{"unknown":1}')
    await peer.send(lost + publish(2, ON) + lost)
    await peer.expect_error(400, "Nothing of the message was kept: nothing remained after normalization")
    await peer.expect(puback(1) + puback(2) + puback(1))
    await peer.expect_nothing()
    assert await server.stored() == [ON.decode()]


async def test_errors_go_to_the_device_that_made_them(server: Server) -> None:
    hall_errors = f"/v1.1/errors/{HALL}".encode()
    kitchen = await server.connected(topics=[ERRORS])
    hall = await server.connected(HALL, HALL_TOKEN, topics=[hall_errors])
    await kitchen.send(publish(1, b"["))
    await kitchen.expect_error(400, "Bad Request")
    await hall.expect_nothing()
    await hall.send(publish(1, b"[", topic=f"v1.1/messages/{HALL}".encode()))
    await hall.expect_error(400, "Bad Request", topic=hall_errors)


# --- Subscriptions --------------------------------------------------------------------------------------------------

FORBIDDEN = [
    b"#",
    b"+",
    b"/v1.1/actions/+",
    b"/v1.1/+/" + KITCHEN.encode(),
    b"/v1.1/actions/#",
    ACTIONS + b"/#",
    ACTIONS + b"/",
    b"/" + ACTIONS,
    MESSAGES,
    ACTIONS.replace(KITCHEN.encode(), HALL.encode()),
    ERRORS.replace(KITCHEN.encode(), BOBS.encode()),
    ACTIONS.upper(),
    b"$SYS/#",
    b"lights",
]


@each_row("topic", FORBIDDEN)
async def test_a_subscription_to_anything_else_is_refused_and_reported(server: Server, topic: bytes) -> None:
    peer = await server.connected()
    await peer.send(subscribe(topic))
    await peer.expect(suback(0x80))
    await peer.send(subscribe(topic, ERRORS, ACTIONS, number=2))
    await peer.expect(suback(0x80, 0, 0, number=2))
    await peer.expect_error(403, "You do not have subscribe permission to topic")
    await peer.expect_nothing()


@each_row("qos", [0, 1, 2])
async def test_qos_0_is_granted_for_every_requested_qos(server: Server, qos: int) -> None:
    peer = await server.connected()
    await peer.send(subscribe(ACTIONS, ERRORS, qos=qos))
    await peer.expect(suback(0, 0))
    await act(server.services)
    assert await peer.expect_delivery() == (ACTIONS, SET_ON.encode())


@each_row("slash", [b"/", b""])
async def test_deliveries_use_the_clients_spelling(server: Server, slash: bytes) -> None:
    actions, errors = slash + ACTIONS[1:], slash + ERRORS[1:]
    peer = await server.connected(topics=[actions, errors])
    await act(server.services)
    assert await peer.expect_delivery() == (actions, SET_ON.encode())
    await peer.send(publish(1, b"["))
    await peer.expect_error(400, "Bad Request", topic=errors)


async def test_of_two_spellings_of_a_topic_only_one_gets_deliveries(server: Server) -> None:
    peer = await server.connected(topics=[ACTIONS, ACTIONS[1:]])
    await act(server.services)
    assert await peer.expect_delivery() == (ACTIONS[1:], SET_ON.encode())
    await peer.expect_nothing()
    await peer.send(unsubscribe(ACTIONS[1:]))
    await peer.expect(unsuback())
    await act(server.services)
    assert await peer.expect_delivery() == (ACTIONS, SET_ON.encode())


async def test_unsubscribing_ends_deliveries(server: Server) -> None:
    peer = await server.connected(topics=[ACTIONS, ERRORS])
    await peer.send(unsubscribe(ACTIONS, ERRORS, b"never/subscribed"), publish(1, b"["))
    await peer.expect(unsuback(), puback(1))
    await act(server.services)
    await peer.expect_nothing()


async def test_answers_keep_the_order_of_the_requests(server: Server) -> None:
    peer = await server.connected(topics=[ERRORS])
    await peer.send(unsubscribe(ERRORS, number=2), subscribe(ERRORS, number=3), unsubscribe(ERRORS, number=4))
    await peer.expect(unsuback(2), suback(0, number=3), unsuback(4))


async def test_a_new_connection_begins_without_subscriptions(server: Server) -> None:
    older = await server.connected(topics=[ACTIONS])
    newer = await server.connected()
    await act(server.services)
    await newer.expect_nothing()
    await older.expect_end()


# --- Actions --------------------------------------------------------------------------------------------------------


async def test_an_action_goes_to_its_device_only(server: Server) -> None:
    hall_actions = f"/v1.1/actions/{HALL}".encode()
    kitchen = await server.connected(topics=[ACTIONS])
    hall = await server.connected(HALL, HALL_TOKEN, topics=[hall_actions])
    data = '{"actions":[{"name":"setOn","parameters":{"state":true,"text":"ü"}},{"name":"setOff"}]}'
    await act(server.services, data=data)
    assert await kitchen.expect_delivery() == (ACTIONS, data.encode())
    await hall.expect_nothing()
    await act(server.services, HALL)
    assert await hall.expect_delivery() == (hall_actions, SET_ON.encode())


async def test_a_device_that_did_not_subscribe_gets_none(server: Server) -> None:
    peer = await server.connected(topics=[ERRORS])
    await act(server.services)
    await peer.expect_nothing()


class TestBareActions:
    @pytest.fixture
    def settings(self, settings: Settings) -> Settings:
        return Settings(
            state_dir=settings.state_dir,
            mqtt=Mqtt(action_payload="array"),
            limits=Limits(rate_limits="off", quotas="off"),
        )

    async def test_actions_can_be_sent_as_the_bare_array(self, server: Server) -> None:
        peer = await server.connected(topics=[ACTIONS])
        for actions in ([{"name": "setOn"}], [{"name": "a", "parameters": {"b": {}}}, {"name": "}"}]):
            await act(server.services, data=json.dumps({"actions": actions}))
            topic, payload = await peer.expect_delivery()
            assert (topic, json.loads(payload)) == (ACTIONS, actions)


async def test_a_slow_device_loses_its_own_actions_only(server: Server) -> None:
    to_server, reads = memory_stream_one_way_pair()
    writes, from_server = lockstep_stream_one_way_pair()
    server.serve(trio.StapledStream(writes, reads))
    slow = Peer(trio.StapledStream(to_server, from_server))
    await slow.send(connect(), subscribe(ACTIONS))
    await slow.expect(ACCEPTED, suback(0))
    hall_actions = f"/v1.1/actions/{HALL}".encode()
    hall = await server.connected(HALL, HALL_TOKEN, topics=[hall_actions])
    data = json.dumps({"actions": [{"name": "x" * 900}]}, separators=(",", ":"))
    sent = 400
    for _ in range(sent):
        await act(server.services, data=data)
    await act(server.services, HALL)
    assert await hall.expect_delivery() == (hall_actions, SET_ON.encode())
    statistics = server.services.routing.connections.statistics()
    taken = statistics.actions_delivered - 1
    assert 0 < taken < sent
    assert statistics.actions_dropped == sent - taken
    for _ in range(taken):
        assert await slow.expect_delivery() == (ACTIONS, data.encode())
    await slow.expect_nothing()
    await act(server.services)  # and now it keeps up again
    assert await slow.expect_delivery() == (ACTIONS, SET_ON.encode())


async def test_a_ping_counts_as_presence(server: Server, fake_clock: FakeClock) -> None:
    peer = await server.connected()
    device = await server.services.devices.registry.find(KITCHEN)
    fake_clock.advance(5_000)
    await peer.expect_nothing()
    assert (await server.services.devices.presence.of(device.key)).last_seen_on == NOW_MS + 5_000
