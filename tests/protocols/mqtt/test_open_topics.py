"""The open topic space: topics beside the service's own (reference 16.6)."""

import tracemalloc

import pytest
import trio
from paho.mqtt.packettypes import PacketTypes
from trio.testing import wait_all_tasks_blocked

from broker.devices.registry import Device
from broker.limits.overhead import FRAMES_AT_ONCE
from broker.topics.space import (
    Search,
    TooLongSubscriptions,
    TooManyRetainedOfUser,
    TopicMessage,
    TopicSpace,
    TopicStatistics,
)
from config.limits import (
    MQTT_OPEN_FILTERS_MAX,
    MQTT_OPEN_PACKET_BYTES,
    MQTT_RETAINED_MAX,
    MQTT_SUBSCRIPTIONS_MAX,
    MQTT_TOPIC_BYTES_MAX,
    MQTT_TOPIC_LEVELS_MAX,
)
from config.settings import Limits, Mqtt, Settings
from protocols.mqtt.packets import Will
from protocols.mqtt.values import NO_PROPERTIES, Properties
from protocols.streams.hub import Hub
from storage.keys import Milliseconds, UserKey
from storage.mqtt_sessions import TopicSubscriptionRecord
from storage.mqtt_topics import RetainedRecord
from tests.builders import ServicesOpener
from tests.factories import BOBS, BOBS_TOKEN, HALL, HALL_TOKEN, KITCHEN, KITCHEN_TOKEN
from tests.fakes import FakeClock
from tests.protocols.mqtt.conftest import Runner
from tests.protocols.mqtt.packets_by_paho import from_paho
from tests.protocols.mqtt.peers import (
    ACTIONS,
    DISCONNECT,
    ERRORS,
    MESSAGES,
    ON,
    Peer,
    Server,
    connect,
    puback,
    pubcomp,
    publish,
    publish_5,
    pubrec,
    pubrel,
    running,
    suback,
    subscribe,
    subscribe_5,
    unsuback,
    unsubscribe,
    unsubscribe_5,
)
from tests.protocols.mqtt.test_exchange import SET_ON, act
from tests.protocols.mqtt.test_lasting_sessions import leave
from tests.protocols.mqtt.test_version_5 import acknowledged, connack, ended, suback_of
from tests.rows import each_row

pytestmark = pytest.mark.slow


FORWARDED = Properties(
    payload_format=1,
    content_type="text/plain",
    response_topic="answers",
    correlation_data=b"\x00\x01",
    user_properties=(("a", "1"), ("b", "2"), ("a", "3")),
)


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return Settings(
        state_dir=settings.state_dir,
        mqtt=Mqtt(topics="open", persistent_sessions="on"),
        limits=Limits(rate_limits="off", quotas="off"),
    )


def space_of(server: Server) -> TopicSpace:
    space = server.services.topics.space
    assert space is not None
    return space


async def dialled(
    server: Server,
    device: str = KITCHEN,
    *,
    level: int = 5,
    clean: bool = True,
    seconds: int = 0,
    will: Will | None = None,
) -> Peer:
    """A device that speaks 5.0, or 3.1.1."""
    token = {KITCHEN: KITCHEN_TOKEN, HALL: HALL_TOKEN, BOBS: BOBS_TOKEN}[device]
    properties = Properties(session_expiry=seconds) if seconds else NO_PROPERTIES
    peer = await server.dial()
    await peer.send(connect(device, token, level=level, client_id=b"c", clean=clean, properties=properties, will=will))
    assert (await peer.packet())[1][1] == 0
    return peer


async def subscribed(peer: Peer, *filters: bytes, options: int = 0, subscription_id: int = 0) -> None:
    properties = Properties(subscription_ids=(subscription_id,)) if subscription_id else NO_PROPERTIES
    await peer.send(subscribe_5(*filters, options=options, properties=properties))
    assert suback_of(await peer.packet()) == ([options & 3] * len(filters), "")


async def heard(peer: Peer) -> tuple[bytes, bytes, int, Properties]:
    """Topic, payload, first byte and properties of the PUBLISH that comes next; it is acknowledged."""
    head, body = await peer.packet()
    assert head & 0xF0 == 0x30, (head, body)
    end = 2 + int.from_bytes(body[:2])
    topic, rest = body[2:end], body[end:]
    if head & 0x06:
        packet_id, rest = rest[:2], rest[2:]
        await peer.send((b"\x40\x02" if head & 0x02 else b"\x50\x02") + packet_id)
        if head & 0x04:
            assert await peer.packet() == (0x62, packet_id)
            await peer.send(b"\x70\x02" + packet_id)
    properties = from_paho(rest, PacketTypes.PUBLISH)
    length = 1 + rest[0]
    return topic, rest[length:], head, properties


async def test_connack_announces_what_there_is(server: Server) -> None:
    peer = await server.dial()
    await peer.send(connect(level=5, client_id=b"c"))
    announced = (await connack(peer))[2]
    assert (announced.retain_available, announced.wildcard_available, announced.shared_available) == (1, 1, 1)
    assert (announced.subscription_ids_available, announced.topic_alias_maximum) == (1, 16)


async def test_a_message_reaches_who_subscribes_in_each_version_and_quality(server: Server) -> None:
    hall, kitchen = await dialled(server, HALL), await dialled(server)
    await subscribed(hall, b"lights/+", options=2)
    for qos in (0, 1, 2):
        await kitchen.send(publish_5(7, b"on", qos=qos, topic=b"lights/7"))
        await kitchen.expect({0: b"", 1: puback(7), 2: pubrec(7)}[qos])
        if qos == 2:
            await kitchen.send(pubrel(7))
            await kitchen.expect(pubcomp(7))
        assert await heard(hall) == (b"lights/7", b"on", 0x30 | qos << 1, NO_PROPERTIES)
    older = await dialled(server, level=4)
    await older.send(subscribe(b"lights/#", qos=1), publish(8, b"off", topic=b"lights/7"))
    await older.expect(suback(1))
    head, body = await older.packet()
    assert (head, body[:10], body[12:]) == (0x32, b"\x00\x08lights/7", b"off")
    await older.expect(puback(8))
    assert (await heard(hall))[:2] == (b"lights/7", b"off")
    await older.send(unsubscribe(b"lights/#"), publish(9, b"on", topic=b"lights/7"))
    await older.expect(unsuback(), puback(9))


async def test_such_messages_are_no_device_data(server: Server) -> None:
    peer = await dialled(server)
    await peer.send(publish_5(1, ON, topic=b"a"), publish_5(2, ON, topic=MESSAGES))
    await peer.expect(puback(1), puback(2))
    assert await server.stored() == [ON.decode()]


async def test_the_services_topics_stay_the_services(server: Server) -> None:
    hall, kitchen = await dialled(server, HALL), await dialled(server)
    await subscribed(hall, b"#", b"+/+/+", b"/+/+/+")
    await hall.send(subscribe_5(b"/v1.1/#", b"v1.1/+/x", b"/v1.1/messages/" + KITCHEN.encode(), ACTIONS))
    assert suback_of(await hall.packet())[0] == [0x87] * 4
    await kitchen.send(subscribe_5(ACTIONS, options=1))
    assert suback_of(await kitchen.packet())[0] == [1]
    await act(server.services)
    assert (await heard(kitchen))[:2] == (ACTIONS, SET_ON.encode())
    await kitchen.send(publish_5(1), publish_5(2, topic=b"/v1.1/x"), publish_5(3, topic=b"v1.1/actions/x"))
    await kitchen.expect(puback(1))
    assert acknowledged(await kitchen.packet())[1] == acknowledged(await kitchen.packet())[1] == 0x87
    await hall.expect_nothing()


async def test_properties_are_forwarded(server: Server, fake_clock: FakeClock) -> None:
    hall, kitchen = await dialled(server, HALL), await dialled(server)
    await subscribed(hall, b"a", options=1, subscription_id=7)
    told = Properties(
        **{name: getattr(FORWARDED, name) for name in FORWARDED.__struct_fields__} | {"message_expiry": 9}
    )
    await kitchen.send(publish_5(1, b"x", topic=b"a", properties=told))
    topic, payload, head, properties = await heard(hall)
    assert (topic, payload, head) == (b"a", b"x", 0x32)
    assert properties == Properties(
        **{name: getattr(told, name) for name in told.__struct_fields__} | {"subscription_ids": (7,)}
    )
    await kitchen.expect(puback(1))
    await kitchen.send(publish_5(2, b"\xff", topic=b"a", properties=Properties(payload_format=1)))
    assert acknowledged(await kitchen.packet())[1] == 0x99


async def test_overlapping_filters_make_one_delivery_with_all_their_ids(server: Server) -> None:
    peer = await dialled(server)
    await subscribed(peer, b"a/#", options=0, subscription_id=1)
    await subscribed(peer, b"a/+", options=1, subscription_id=2)
    await peer.send(publish_5(1, b"x", topic=b"a/b"))
    _, _, head, properties = await heard(peer)
    assert (head, sorted(properties.subscription_ids)) == (0x32, [1, 2])
    await peer.expect(puback(1))
    await peer.expect_nothing()


async def test_a_subscription_to_the_same_filter_replaces_the_earlier_one(server: Server) -> None:
    peer = await dialled(server)
    await subscribed(peer, b"a", options=1, subscription_id=1)
    await subscribed(peer, b"a", options=0, subscription_id=2)
    await peer.send(publish_5(1, b"x", topic=b"a"))
    assert await heard(peer) == (b"a", b"x", 0x30, Properties(subscription_ids=(2,)))
    await peer.expect(puback(1))
    await peer.send(unsubscribe_5(b"a"), publish_5(2, b"x", topic=b"a"))
    assert await peer.packet() == (0xB0, b"\x00\x01\x00\x00")
    await peer.expect(puback(2))
    await peer.expect_nothing()


async def test_no_local(server: Server) -> None:
    peer = await dialled(server)
    await subscribed(peer, b"a", options=0x04)
    await peer.send(publish_5(1, topic=b"a"))
    await peer.expect(puback(1))
    await peer.expect_nothing()


async def test_a_shared_subscription_delivers_to_one_member(server: Server) -> None:
    hall, kitchen = await dialled(server, HALL), await dialled(server)
    for peer in (hall, kitchen):
        await subscribed(peer, b"$share/g/a/#", options=1)
    for number in range(1, 5):
        await kitchen.send(publish_5(number, b"%d" % number, topic=b"a/b"))
    assert [(await heard(hall))[1] for _ in range(2)] in ([b"1", b"3"], [b"2", b"4"])
    got = [(await kitchen.packet())[0] for _ in range(6)]
    assert sorted(got) == [0x32, 0x32, 0x40, 0x40, 0x40, 0x40]
    await hall.expect_nothing()


# --- Retained messages ----------------------------------------------------------------------------------------------


async def test_retained_messages_meet_new_subscriptions(server: Server, fake_clock: FakeClock) -> None:
    kitchen, hall = await dialled(server), await dialled(server, HALL)
    await kitchen.send(
        publish_5(1, b"1", topic=b"a/1", retain=True),
        publish_5(2, b"2", topic=b"a/2", retain=True, properties=Properties(message_expiry=60)),
        publish_5(3, b"3", topic=b"a/3", retain=True),
        publish_5(4, b"", topic=b"a/3", retain=True),
        publish_5(5, b"5", topic=b"a/4"),
    )
    await kitchen.expect(*map(puback, range(1, 6)))
    fake_clock.advance(20_000)
    await subscribed(hall, b"a/+", options=1, subscription_id=9)
    assert await heard(hall) == (b"a/1", b"1", 0x33, Properties(subscription_ids=(9,)))
    assert await heard(hall) == (b"a/2", b"2", 0x33, Properties(subscription_ids=(9,), message_expiry=40))
    await hall.expect_nothing()
    await subscribed(hall, b"a/1", options=0x20)  # retain handling 2: none
    await subscribed(hall, b"a/1", options=0x10)  # 1: none for one that exists
    await hall.expect_nothing()
    await subscribed(hall, b"a/1")
    assert (await heard(hall))[2] == 0x31
    fake_clock.advance(60_000)
    await subscribed(hall, b"a/2")
    await hall.expect_nothing()


async def test_retain_is_kept_for_those_who_ask(server: Server) -> None:
    hall = await dialled(server, HALL)
    await subscribed(hall, b"a")
    await subscribed(hall, b"b", options=0x08)
    kitchen = await dialled(server)
    await kitchen.send(publish_5(1, b"x", topic=b"a", retain=True), publish_5(2, b"x", topic=b"b", retain=True))
    assert [(await heard(hall))[2] for _ in range(2)] == [0x30, 0x31]


async def test_retained_messages_are_bounded(server: Server) -> None:
    space = space_of(server)
    for number in range(MQTT_RETAINED_MAX):
        space._keep(RetainedRecord(b"%d" % number, b"x", 0, b"", None))
    peer = await dialled(server)
    await peer.send(publish_5(1, b"x", topic=b"new", retain=True), publish_5(2, b"y", topic=b"7", retain=True))
    text = "No more retained messages are taken: there are 40000, or 64 MiB"
    assert acknowledged(await peer.packet()) == (0x40, 0x97, text)
    await peer.expect(puback(2))
    await peer.send(publish_5(3, b"", topic=b"8", retain=True), publish_5(4, b"x", topic=b"new", retain=True))
    await peer.expect(puback(3), puback(4))
    assert space.statistics().retained == MQTT_RETAINED_MAX


async def test_what_changes_during_a_search_is_told_once(server: Server) -> None:
    space, find = space_of(server), server.services.devices.registry.find
    hall, kitchen = await find(HALL), await find(KITCHEN)
    for number in range(4):
        space._keep(RetainedRecord(b"%d" % number, b"old", 0, b"", None))
    search = space.subscribe(hall.key, hall.owner, b"#", TopicSubscriptionRecord(0), retain_handling=0)
    first = next(search)
    assert first is not None
    assert first.payload == b"old"
    space.publish(TopicMessage(b"1", b"new", 0, True, b"", None), kitchen.key, kitchen.owner)
    space.publish(TopicMessage(b"2", b"", 0, True, b"", None), kitchen.key, kitchen.owner)
    assert [one and one.topic for one in search] == [None, None, b"3"]


@each_row("is_replaced", [False, True], ids=["left", "replaced"])
async def test_a_search_goes_on_for_a_session_that_lasts(server: Server, is_replaced: bool) -> None:
    count = 4 * FRAMES_AT_ONCE
    for number in range(count):
        space_of(server)._keep(RetainedRecord(b"%d" % number, b"x", 1, b"", None))
    hall = await dialled(server, HALL, seconds=60)
    await subscribed(hall, b"#", options=1)
    if not is_replaced:
        await hall.stream.aclose()
    again = await dialled(server, HALL, clean=False, seconds=60)
    assert {(await heard(again))[0] for _ in range(count)} == {b"%d" % number for number in range(count)}
    await again.expect_nothing()


# --- Sessions -------------------------------------------------------------------------------------------------------


async def test_messages_wait_for_a_device_that_is_away(server: Server) -> None:
    hall = await dialled(server, HALL, seconds=60)
    await subscribed(hall, b"a/#", options=1, subscription_id=3)
    await leave(server, hall)
    kitchen = await dialled(server)
    await kitchen.send(
        publish_5(1, b"1", topic=b"a/b"),
        publish_5(2, b"2", topic=b"a/b", qos=0),
        publish_5(3, b"3", topic=b"a/b", properties=FORWARDED),
    )
    await kitchen.expect(puback(1), puback(3))
    await wait_all_tasks_blocked()
    again = await dialled(server, HALL, clean=False, seconds=60)
    assert await heard(again) == (b"a/b", b"1", 0x32, Properties(subscription_ids=(3,)))
    topic, payload, _, properties = await heard(again)
    assert (topic, payload, properties.user_properties) == (b"a/b", b"3", FORWARDED.user_properties)
    await again.expect_nothing()


async def test_a_clean_session_leaves_nothing_behind(server: Server) -> None:
    space = space_of(server)
    for _ in range(2):
        peer = await dialled(server, HALL)
        await subscribed(peer, b"a", b"$share/g/b")
        assert space.statistics().subscriptions == 2
        await leave(server, peer, DISCONNECT)
    assert space.statistics() == TopicStatistics(0, 0, 0, 0, 0)
    assert space._tree._root.is_empty


async def test_a_device_has_a_bounded_number_of_subscriptions(server: Server) -> None:
    """Ten packets of a thousand, as Home Assistant sends them, and what is one too many."""
    peer = await dialled(server, seconds=60)
    await peer.send(subscribe_5(ERRORS, number=9))
    await peer.packet()
    for part in range(0, MQTT_SUBSCRIPTIONS_MAX, MQTT_OPEN_FILTERS_MAX):
        await subscribed(peer, *(b"t/%d" % number for number in range(part, part + MQTT_OPEN_FILTERS_MAX)))
    await peer.send(subscribe_5(b"t/0", b"one/more"))
    text = "A device may subscribe to 10000 topic filters"
    assert suback_of(await peer.packet()) == ([0, 0x97], text)
    assert text.encode() in (await heard(peer))[1]
    await peer.send(unsubscribe_5(*(b"t/%d" % number for number in range(1, MQTT_OPEN_FILTERS_MAX)), b"unknown"))
    head, body = await peer.packet()
    assert (head, body[3:]) == (0xB0, bytes(MQTT_OPEN_FILTERS_MAX - 1) + b"\x11")
    await subscribed(peer, b"one/more")
    assert space_of(server).statistics().subscriptions == MQTT_SUBSCRIPTIONS_MAX - MQTT_OPEN_FILTERS_MAX + 2
    await peer.send(subscribe_5(*(b"u/%d" % number for number in range(MQTT_OPEN_FILTERS_MAX + 1))))
    assert await ended(peer) == (0x97, "more than 1000 topic filters in one packet")


async def test_the_subscriptions_of_a_user_are_bounded_in_memory(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.topics.space.MQTT_SUBSCRIBED_BYTES", 10_000)
    space = space_of(server)
    kitchen, hall = await dialled(server), await dialled(server, HALL)  # of one owner
    await subscribed(kitchen, *(b"a/b/c/%d" % number for number in range(5)))
    await hall.send(subscribe_5(b"a/b/c/0", b"x"))
    text = TooLongSubscriptions.template
    assert suback_of(await hall.packet()) == ([0x97, 0], text)
    bobs = await dialled(server, BOBS)
    await subscribed(bobs, b"a/b/c/0")  # another user has a bound of his own
    await kitchen.send(unsubscribe_5(b"a/b/c/4"))
    await kitchen.packet()
    await subscribed(hall, b"a/b/c/0")
    for peer in (kitchen, hall, bobs):
        await leave(server, peer, DISCONNECT)
    assert (space._subscribed, space._owners, space._subscriptions) == ({}, {}, {})


async def test_the_bound_of_subscriptions_is_about_what_they_take(server: Server) -> None:
    space, kitchen = space_of(server), await server.services.devices.registry.find(KITCHEN)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(2_000):
            filter_ = b"homeassistant/sensor/%d/state/of/a/thing" % number
            space.subscribe(kitchen.key, kitchen.owner, filter_, TopicSubscriptionRecord(0), retain_handling=2)
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert 0.5 < taken / space._subscribed[kitchen.owner] < 1.1


async def test_the_retained_messages_of_a_user_are_bounded(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.topics.space.MQTT_RETAINED_OF_USER", 2)
    monkeypatch.setattr("broker.topics.space.MQTT_RETAINED_BYTES_OF_USER", 50)
    kitchen, hall, bobs = await dialled(server), await dialled(server, HALL), await dialled(server, BOBS)
    await kitchen.send(publish_5(1, b"x", topic=b"1", retain=True))
    await hall.send(publish_5(1, b"x", topic=b"2", retain=True))
    await kitchen.expect(puback(1))
    await hall.expect(puback(1))
    refused = publish_5(2, b"x", topic=b"3", retain=True), publish_5(3, b"x" * 60, topic=b"1", retain=True)
    await hall.send(*refused, publish_5(4, b"y" * 40, topic=b"1", retain=True))
    for _ in refused:
        assert acknowledged(await hall.packet()) == (0x40, 0x97, TooManyRetainedOfUser.template)
    await hall.expect(puback(4))
    await bobs.send(publish_5(1, b"x", topic=b"1", retain=True))  # the topic is his now
    await bobs.expect(puback(1))
    await kitchen.send(publish_5(5, b"x", topic=b"3", retain=True))
    await kitchen.expect(puback(5))
    for peer, topic in ((kitchen, b"1"), (bobs, b"2"), (hall, b"3")):
        await peer.send(publish_5(9, b"", topic=topic, retain=True))
        await peer.expect(puback(9))
    space = space_of(server)
    assert (space._retained_of, space.statistics().retained_bytes) == ({}, 0)


async def test_who_retains_is_known_after_a_restart(opener: ServicesOpener, runner: Runner) -> None:
    async with running(opener, runner) as server:
        kitchen = await dialled(server, seconds=60)
        await subscribed(kitchen, b"a/b", options=1)
        await kitchen.send(publish_5(1, b"x", topic=b"1", retain=True))
        await kitchen.expect(puback(1))
        before = space_of(server)._retained_of, space_of(server)._subscribed, space_of(server)._owners
        assert all(before)
    async with running(opener, runner) as server:
        after = space_of(server)._retained_of, space_of(server)._subscribed, space_of(server)._owners
        assert after == before


# --- Large packets --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_a_packet_of_one_mebibyte_is_taken_delivered_and_retained(server: Server, qos: int) -> None:
    topic = b"zigbee2mqtt/bridge/devices"
    header = len(publish_5(1, b"", qos=qos, topic=topic, retain=True)) + 2  # its length takes two bytes more
    whole = b"x" * (MQTT_OPEN_PACKET_BYTES - header)
    hall, kitchen = await dialled(server, HALL), await dialled(server)
    await subscribed(hall, b"zigbee2mqtt/#", options=min(qos, 1))
    packet = publish_5(1, whole, qos=qos, topic=topic, retain=True)
    assert len(packet) == MQTT_OPEN_PACKET_BYTES
    await kitchen.send(packet)
    await kitchen.expect(*([b""], [puback(1)], [pubrec(1)])[qos])
    assert (await heard(hall))[:2] == (topic, whole)
    bobs = await dialled(server, BOBS)
    await subscribed(bobs, topic)
    assert (await heard(bobs))[:2] == (topic, whole)
    await kitchen.send(publish_5(2, whole + b"x", qos=qos, topic=topic, retain=True))
    assert (await ended(kitchen))[0] == 0x95


async def test_a_large_packet_waits_for_a_device_that_is_away(server: Server) -> None:
    hall = await dialled(server, HALL, seconds=60)
    await subscribed(hall, b"a", options=1)
    await leave(server, hall)
    kitchen = await dialled(server)
    for number in (1, 2):
        await kitchen.send(publish_5(number, b"%d" % number * 700_000, topic=b"a"))
        await kitchen.expect(puback(number))
    again = await dialled(server, HALL, clean=False, seconds=60)
    assert (await heard(again))[1] == b"2" * 700_000  # and the older one had no room any more


async def test_a_stranger_sends_no_large_packet(server: Server) -> None:
    for head in (b"\x30", b"\x10"):
        peer = await server.dial()
        await peer.send(head + b"\xf0\xa2\x04" + b"\0\4MQTT\4")  # of 70,000 bytes
        await peer.expect_end()
    peer = await server.dial()  # what follows CONNECT at once is of a device that is known by then
    await peer.send(connect(), publish(1, bytes(70_000), topic=b"a"))
    await peer.expect(b"\x20\x02\x00\x00", puback(1))


async def test_large_packets_that_arrive_at_once_are_bounded_for_each_user(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.topics.space.MQTT_ARRIVING_BYTES", 200_000)
    large = publish_5(1, bytes(90_000), topic=b"a")
    kitchen, hall = await dialled(server), await dialled(server, HALL)
    bobs = await dialled(server, BOBS)
    for peer in (kitchen, hall, bobs):
        await peer.send(large[:1_000])
    await wait_all_tasks_blocked()
    assert sorted(space_of(server)._arriving.values()) == [len(large), 2 * len(large)]
    await hall.send(large[1_000:], large[:1_000])  # one after the other
    await hall.expect(puback(1))
    await hall.send(large[1_000:], publish_5(2, bytes(120_000), topic=b"a")[:1_000])
    await hall.expect(puback(1))
    assert await ended(hall) == (0x97, "too many large packets of the owner's devices arrive at once")
    await leave(server, kitchen)
    await leave(server, bobs)
    assert space_of(server)._arriving == {}


@pytest.mark.parametrize("qos", [0, 1])
async def test_what_waits_for_slow_readers_is_bounded_for_each_user(
    server: Server, monkeypatch: pytest.MonkeyPatch, qos: int
) -> None:
    bound, size = 150_000, 70_000
    monkeypatch.setattr("broker.topics.space.MQTT_QUEUED_BYTES", bound)
    server.hub = Hub(server.nursery, server.services.core.life)  # with sockets, which take only so much
    hall, bobs, kitchen = await dialled(server, HALL), await dialled(server, BOBS), await dialled(server)
    for peer in (hall, bobs):
        await subscribed(peer, b"big/#", options=qos)
    for number in range(1, 31):
        await kitchen.send(publish_5(number, bytes(size), topic=b"big/%d" % number))
        await kitchen.expect(puback(number))
    held = space_of(server)._queued
    assert sorted(held) == sorted({(await found(server, one)).owner for one in (HALL, BOBS)})
    assert all(waiting <= bound + 2 * (size + 100) for waiting in held.values()), held
    for peer, device in ((hall, HALL), (bobs, BOBS)):  # whoever reads gets what comes next
        owner, topics = (await found(server, device)).owner, list[bytes]()
        while owner in held:
            topics.append((await heard(peer))[0])
            await wait_all_tasks_blocked()
        await kitchen.send(publish_5(31, b"x", topic=b"big/last"))
        await kitchen.expect(puback(31))
        while topics[-1] != b"big/last":
            topics.append((await heard(peer))[0])
        assert 3 <= len(topics) < 31, topics  # the others were dropped
    for peer in (hall, bobs, kitchen):
        await peer.stream.aclose()
    await wait_all_tasks_blocked()
    assert held == {}


async def found(server: Server, device: str) -> Device:
    return await server.services.devices.registry.find(device)


async def test_topics_are_short(server: Server) -> None:
    """The memory that a device can occupy is bounded: filters, aliases and waiting messages."""
    long, deep = b"a" * (MQTT_TOPIC_BYTES_MAX + 1), b"a/" * MQTT_TOPIC_LEVELS_MAX
    peer = await dialled(server)
    await peer.send(publish_5(1, topic=long), publish_5(2, topic=deep), publish_5(3, topic=b"$SYS/x"))
    assert [acknowledged(await peer.packet())[1] for _ in range(3)] == [0x90] * 3
    await peer.send(subscribe_5(long, deep + b"#", b"$share/g/" + long, b"a/#/b"))
    assert suback_of(await peer.packet())[0] == [0x8F] * 4
    await peer.send(publish_5(1, topic=long, properties=Properties(topic_alias=1)))
    assert await ended(peer) == (0x90, "a topic alias for a topic that is too long")


async def test_a_group_is_no_way_to_the_services_topics(server: Server) -> None:
    peer = await dialled(server)
    await peer.send(subscribe_5(b"$share/g/" + ACTIONS, b"$share/g/v1.1/#", b"$share/g//v1.1x"))
    assert suback_of(await peer.packet())[0] == [0x87, 0x87, 0]


async def test_a_will_goes_to_a_topic(server: Server) -> None:
    hall = await dialled(server, HALL)
    await subscribed(hall, b"gone", options=1)
    kitchen = await dialled(server, will=Will(b"gone", b"kitchen", 1, True, FORWARDED))
    await kitchen.stream.aclose()
    topic, payload, head, properties = await heard(hall)
    assert (topic, payload, head, properties) == (b"gone", b"kitchen", 0x32, FORWARDED)
    space = space_of(server)
    assert space.statistics().retained == 1


async def test_a_will_without_retain_is_not_retained(server: Server) -> None:
    hall = await dialled(server, HALL)
    await subscribed(hall, b"gone", options=0x08)
    kitchen = await dialled(server, will=Will(b"gone", b"kitchen", 0, False))
    await leave(server, kitchen)
    assert (await heard(hall))[:3] == (b"gone", b"kitchen", 0x30)
    space = space_of(server)
    assert space.statistics().retained == 0


@each_row("topic", [b"$SYS/x", ACTIONS])
async def test_a_will_to_no_topic_of_messages_is_dropped(server: Server, topic: bytes) -> None:
    hall = await dialled(server, HALL)
    await subscribed(hall, b"#", b"$SYS/x")
    kitchen = await dialled(server, will=Will(topic, b"kitchen", 1, True))
    await leave(server, kitchen)
    await hall.expect_nothing()
    space = space_of(server)
    assert space.statistics().retained == 0


async def test_rules_say_who_may_use_which_topics(server: Server) -> None:
    rule = {"device": KITCHEN, "topic": "rooms/%d/#", "publish": True, "subscribe": True}
    await server.services.provisioning.apply({"topic_rules": [rule]})
    own, other = (f"rooms/{device}/lamp".encode() for device in (KITCHEN, HALL))
    peer = await dialled(server, will=Will(other, b"x", 0, True))
    await peer.send(publish_5(1, topic=own), publish_5(2, topic=other), publish_5(3, topic=MESSAGES))
    await peer.expect(puback(1))
    assert acknowledged(await peer.packet())[1] == 0x87
    await peer.expect(puback(3))
    await peer.send(subscribe_5(own, other, b"#"))
    assert suback_of(await peer.packet())[0] == [0, 0x87, 0x87]
    await leave(server, peer)
    space = space_of(server)
    assert space.statistics().retained == 0


# --- Topic aliases --------------------------------------------------------------------------------------------------


async def test_a_topic_alias_stands_for_its_latest_topic(server: Server) -> None:
    hall, kitchen = await dialled(server, HALL), await dialled(server)
    await subscribed(hall, b"#")
    alias = Properties(topic_alias=16)
    await kitchen.send(
        publish_5(1, b"1", topic=b"a", properties=alias),
        publish_5(2, b"2", topic=b"", properties=alias),
        publish_5(3, b"3", topic=b"b", properties=alias),
        publish_5(4, b"4", topic=b"", properties=alias),
        publish_5(5, topic=MESSAGES, properties=alias),
        publish_5(6, topic=b"", properties=alias),
    )
    got = [(await heard(hall))[:2] for _ in range(4)]
    assert got == [(b"a", b"1"), (b"a", b"2"), (b"b", b"3"), (b"b", b"4")]
    await kitchen.expect(*map(puback, range(1, 7)))
    assert len(await server.stored()) == 2
    for bad in (Properties(topic_alias=17), Properties(topic_alias=1)):
        peer = await dialled(server, HALL)
        await peer.send(publish_5(1, topic=b"", properties=bad))
        assert (await ended(peer))[0] == 0x94


async def test_expired_retained_messages_make_room(server: Server, fake_clock: FakeClock) -> None:
    space = space_of(server)
    for number in range(MQTT_RETAINED_MAX):
        expires_on = Milliseconds(fake_clock.now + 1000) if number == 7 else None
        space._keep(RetainedRecord(b"%d" % number, b"x", 0, b"", expires_on))
    peer = await dialled(server)
    await peer.send(publish_5(1, topic=b"new", retain=True))
    assert acknowledged(await peer.packet())[1] == 0x97
    fake_clock.advance(1000)
    await peer.send(publish_5(2, topic=b"new", retain=True), publish_5(3, topic=b"newer", retain=True))
    await peer.expect(puback(2))
    assert acknowledged(await peer.packet())[1] == 0x97


# --- Fairness -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("has_hub", [False, True], ids=["a task reads", "the hub reads"])
async def test_a_turn_ends_when_its_deliveries_have_taken_it_and_nothing_is_lost(server: Server, has_hub: bool) -> None:
    server.hub = Hub(server.nursery, server.services.core.life) if has_hub else None
    hall, kitchen = await dialled(server, HALL), await dialled(server)
    await subscribed(hall, *(b"$share/g%d/#" % number for number in range(50)))
    await kitchen.send(*(publish_5(number, b"x", topic=b"a") for number in range(1, 11)), DISCONNECT)
    await kitchen.expect(*map(puback, range(1, 11)))
    await kitchen.expect_end()
    for _ in range(10 * 50):
        assert (await heard(hall))[:2] == (b"a", b"x")
    await hall.expect_nothing()
    # Beyond the allowance, and not beyond the first turns, which took several packets each.
    assert server.services.limits.overhead.statistics().delayed >= 10 * 50 - 2 * FRAMES_AT_ONCE
    await hall.stream.aclose()


@pytest.mark.parametrize("has_hub", [False, True], ids=["a task reads", "the hub reads"])
async def test_others_run_while_retained_messages_are_searched(
    server: Server, has_hub: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.hub = Hub(server.nursery, server.services.core.life) if has_hub else None
    space = space_of(server)
    for number in range(4_000):
        space._keep(RetainedRecord(b"a/%d" % number, b"x", 0, b"", None))
    search, looked = space._search, 0

    def counted(filter_: bytes, all_retained: tuple[RetainedRecord, ...], owner: UserKey) -> Search:
        nonlocal looked
        for found in search(filter_, all_retained, owner):
            looked += 1
            yield found

    monkeypatch.setattr(space, "_search", counted)
    peer, steps, before = await dialled(server), list[int](), 0
    await peer.send(subscribe_5(b"+/x", b"+/x/#"))
    while looked < 2 * 4_000:
        await trio.lowlevel.checkpoint()
        steps.append(looked - before)
        before = looked
    assert max(steps) <= 2 * 1_000
    assert suback_of(await peer.packet()) == ([0, 0], "")
    await peer.stream.aclose()


async def test_retaining_is_paced(server: Server) -> None:
    peer = await dialled(server)
    await peer.send(*(publish_5(qos=0, topic=b"a/%d" % number, retain=True) for number in range(FRAMES_AT_ONCE)))
    await peer.expect_nothing()
    assert server.services.limits.overhead.statistics().delayed >= 2 * FRAMES_AT_ONCE


async def test_a_device_that_comes_again_has_the_same_allowance(server: Server) -> None:
    for _ in range(3):
        peer = await dialled(server, seconds=60)
        await subscribed(peer, *(b"a/%d" % number for number in range(50)))
        await leave(server, peer)
    assert server.services.limits.overhead.statistics().delayed >= 2 * 50


# --- Restarts -------------------------------------------------------------------------------------------------------


@pytest.mark.both_engines
async def test_what_is_retained_and_what_waits_outlives_the_daemon(opener: ServicesOpener, runner: Runner) -> None:
    async with running(opener, runner) as server:
        hall = await dialled(server, HALL, seconds=60)
        await subscribed(hall, b"a", options=1)
        await leave(server, hall)
    async with running(opener, runner) as server:
        kitchen = await dialled(server)
        await kitchen.send(publish_5(1, b"1", topic=b"a", retain=True))
        await kitchen.expect(puback(1))
    async with running(opener, runner) as server:
        hall = await dialled(server, HALL, clean=False, seconds=60)
        assert (await heard(hall))[:2] == (b"a", b"1")
        kitchen = await dialled(server)
        await subscribed(kitchen, b"a")
        assert (await heard(kitchen))[:3] == (b"a", b"1", 0x31)
