"""Sessions that outlive connections, and restarts of the daemon (reference 16.5)."""

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.device_sessions.sessions import SessionStatistics
from config.limits import MQTT_WAITING_MESSAGES
from config.settings import Limits, Mqtt, Settings
from protocols.mqtt.encoding import encode_publish
from protocols.mqtt.flow import packet_id_of
from protocols.mqtt.packets import Will
from protocols.mqtt.values import Properties
from tests.builders import ServicesOpener
from tests.factories import KITCHEN
from tests.fakes import FakeClock
from tests.protocols.mqtt.conftest import Runner
from tests.protocols.mqtt.peers import (
    ACTIONS,
    DISCONNECT,
    ERRORS,
    MESSAGES,
    ON,
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
    running,
    suback,
    subscribe,
    subscribe_5,
    unsuback,
    unsubscribe,
)
from tests.protocols.mqtt.test_exchange import SET_ON, act
from tests.protocols.mqtt.test_version_5 import connack

NEW, AGAIN = b"\x20\x02\x00\x00", b"\x20\x02\x01\x00"
ANOTHER = '{"actions":[{"name":"setOff"}]}'


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return Settings(
        state_dir=settings.state_dir,
        mqtt=Mqtt(persistent_sessions="on"),
        limits=Limits(rate_limits="off", quotas="off"),
    )


async def lasting(server: Server, answer: bytes = NEW, *, client_id: bytes = b"c", will: Will | None = None) -> Peer:
    peer = await server.dial()
    await peer.send(connect(client_id=client_id, clean=False, will=will))
    await peer.expect(answer)
    return peer


async def lasting_5(server: Server, is_present: int = 0, *, seconds: int = 60, will: Will | None = None) -> Peer:
    peer = await server.dial()
    properties = Properties(session_expiry=seconds)
    await peer.send(connect(level=5, client_id=b"c", clean=False, properties=properties, will=will))
    assert (await connack(peer))[:2] == (is_present, 0)
    return peer


async def leave(server: Server, peer: Peer, *last: bytes) -> None:
    """The connection ends, with these packets or without a word, and the server has seen it."""
    if last:
        await peer.send(*last)
        await peer.expect_end()
    else:
        await peer.stream.aclose()
    await wait_all_tasks_blocked()


def delivered(number: int, data: str = SET_ON, *, qos: int = 1, dup: bool = False, topic: bytes = ACTIONS) -> bytes:
    return encode_publish(topic, data.encode(), qos=qos, packet_id=packet_id_of(number), dup=dup)


def acknowledgement(number: int) -> bytes:
    return puback(int.from_bytes(packet_id_of(number)))


def statistics(server: Server) -> SessionStatistics:
    sessions = server.services.device_sessions.sessions
    assert sessions is not None
    return sessions.statistics()


async def test_actions_have_the_qos_of_the_subscription(server: Server) -> None:
    for level, qos in ((4, 0), (4, 1), (4, 2), (5, 1)):
        peer = await server.dial()
        await peer.send(connect(level=level))
        assert (await peer.packet())[0] == 0x20
        if level == 5:
            await peer.send(subscribe_5(ACTIONS, options=qos))
            assert await peer.packet() == (0x90, bytes((0, 1, 0, qos)))
        else:
            await peer.send(subscribe(ACTIONS, ERRORS, qos=qos))
            await peer.expect(suback(qos, 0))
        await act(server.services)
        head, body = await peer.packet()
        assert head == 0x30 | qos << 1
        packet_id = body[2 + len(ACTIONS) :][:2]
        assert body.endswith(SET_ON.encode())
        if qos == 1:
            await peer.send(b"\x40\x02" + packet_id)
        if qos == 2:
            await peer.send(b"\x50\x02" + packet_id)
            await peer.expect(b"\x62\x02" + packet_id)
            await peer.send(b"\x70\x02" + packet_id)
        await peer.expect_nothing()
        await leave(server, peer)
    assert statistics(server) == SessionStatistics(0, 0, 0, 0)


async def test_actions_wait_for_a_device_that_is_away(server: Server) -> None:
    peer = await lasting(server)
    await peer.send(subscribe(ACTIONS, qos=1))
    await peer.expect(suback(1))
    await leave(server, peer)
    await act(server.services)
    await act(server.services, data=ANOTHER)
    again = await lasting(server, AGAIN)
    await again.expect(delivered(1), delivered(2, ANOTHER))
    await again.send(acknowledgement(1))
    await again.expect_nothing()
    await leave(server, again, DISCONNECT)
    third = await lasting(server, AGAIN)
    await third.expect(delivered(2, ANOTHER, dup=True))  # [MQTT-4.4.0-1]: with its packet id
    await third.send(acknowledgement(2))
    await third.expect_nothing()
    await act(server.services)
    await third.expect(delivered(3))
    assert statistics(server).resumed == 2


async def test_a_session_has_no_actions_from_before_its_subscription_or_after_its_end(server: Server) -> None:
    await act(server.services)
    peer = await lasting(server)
    await peer.send(subscribe(ACTIONS, qos=1))
    await peer.expect(suback(1))
    await peer.send(unsubscribe(ACTIONS))
    await peer.expect(unsuback())
    await leave(server, peer)
    await act(server.services)
    again = await lasting(server, AGAIN)
    await again.send(subscribe(ACTIONS, qos=1))
    await again.expect(suback(1))
    await again.expect_nothing()
    await act(server.services)
    await again.expect(delivered(1))


async def test_actions_of_qos_0_do_not_wait(server: Server) -> None:
    peer = await lasting(server)
    await peer.send(subscribe(ACTIONS, qos=1), subscribe(ACTIONS, qos=0, number=2))
    await peer.expect(suback(1), suback(0, number=2))
    await leave(server, peer)
    await act(server.services)
    again = await lasting(server, AGAIN)
    await again.expect_nothing()
    await act(server.services)
    assert await again.expect_delivery() == (ACTIONS, SET_ON.encode())


@pytest.mark.parametrize("how", ["clean start", "another client id", "expired", "no expiry"])
async def test_a_session_ends(server: Server, fake_clock: FakeClock, how: str) -> None:
    peer = await lasting_5(server, seconds=60)
    await peer.send(subscribe_5(ACTIONS, options=1))
    await peer.packet()
    last = disconnect_5(0, Properties(session_expiry=0)) if how == "no expiry" else disconnect_5()
    await leave(server, peer, last)
    await act(server.services)
    if how == "expired":
        fake_clock.advance(60_000)
    again = await server.dial()
    client_id = b"d" if how == "another client id" else b"c"
    await again.send(
        connect(level=5, client_id=client_id, clean=how == "clean start", properties=Properties(session_expiry=60))
    )
    assert (await connack(again))[:2] == (0, 0)
    await again.expect_nothing()


async def test_a_session_that_nobody_resumes_is_swept(server: Server, fake_clock: FakeClock) -> None:
    sessions = server.services.device_sessions.sessions
    assert sessions is not None
    peer = await lasting_5(server, seconds=60)
    await leave(server, peer)

    async def rows() -> int:
        return await server.services.core.database.read(lambda tx: tx.mqtt_sessions.count())

    await sessions.sweep()
    assert await rows() == 1
    fake_clock.advance(60_000)
    await sessions.sweep()
    assert (await rows(), statistics(server).expired) == (0, 1)


async def test_a_session_stays_while_its_connection_is_open(server: Server, fake_clock: FakeClock) -> None:
    sessions = server.services.device_sessions.sessions
    assert sessions is not None
    peer = await lasting_5(server, seconds=60)
    await peer.send(subscribe_5(ACTIONS, options=1))
    await peer.packet()
    fake_clock.advance(3_600_000)
    await sessions.sweep()
    await act(server.services)
    assert (await peer.packet())[0] == 0x32
    await leave(server, peer)
    await lasting_5(server, 1, seconds=60)


async def test_a_session_lasts_no_longer_than_the_setting(server: Server) -> None:
    for asked, given in ((60, 60), (700_000, 604_800), (0xFFFF_FFFF, 604_800)):
        peer = await server.dial()
        await peer.send(connect(level=5, client_id=b"c", properties=Properties(session_expiry=asked)))
        assert (await connack(peer))[2].session_expiry == given


async def test_a_qos_2_message_that_is_sent_again_on_the_next_connection_is_stored_once(server: Server) -> None:
    peer = await lasting(server)
    await peer.send(publish(7, qos=2), publish(8, qos=2))
    await peer.expect(pubrec(7), pubrec(8))
    await peer.send(pubrel(8))
    await peer.expect(pubcomp(8))
    await leave(server, peer)
    again = await lasting(server, AGAIN)
    await again.send(publish(7, qos=2, dup=True), pubrel(7))
    await again.expect(pubrec(7), pubcomp(7))
    assert len(await server.stored()) == 2
    await leave(server, again)
    third = await lasting(server, AGAIN)
    await third.send(publish(7, qos=2), publish(8, qos=2))  # both ids are free
    await third.expect(pubrec(7), pubrec(8))
    assert len(await server.stored()) == 4


async def test_a_refused_message_of_qos_2_takes_no_id_in_5_0(server: Server) -> None:
    peer = await lasting_5(server)
    await peer.send(publish_5(7, b"[", qos=2))
    assert (await peer.packet())[1][:3] == b"\x00\x07\x99"
    await leave(server, peer)
    again = await lasting_5(server, 1)
    await again.send(publish_5(7, qos=2))
    await again.expect(pubrec(7))
    assert await server.stored() == [ON.decode()]


async def test_a_delivery_of_qos_2_that_a_newer_connection_has_does_not_go_on(server: Server) -> None:
    """Of several nodes: that one sends it again, and the device would take it twice."""
    peer = await lasting(server)
    await peer.send(subscribe(ACTIONS, qos=2))
    await peer.expect(suback(2))
    await act(server.services)
    await peer.expect(delivered(1, qos=2))
    sessions = server.services.device_sessions.sessions
    assert sessions is not None
    (session,) = sessions._current.values()
    session.holder = "this node, which the store does not have any more"
    await peer.send(pubrec(int.from_bytes(packet_id_of(1))))
    await peer.expect_end()


async def test_a_delivery_of_qos_2_goes_on_where_it_was(server: Server) -> None:
    peer = await lasting(server)
    await peer.send(subscribe(ACTIONS, qos=2))
    await peer.expect(suback(2))
    await act(server.services)
    await act(server.services, data=ANOTHER)
    await peer.expect(delivered(1, qos=2), delivered(2, ANOTHER, qos=2))
    first = int.from_bytes(packet_id_of(1))
    await peer.send(pubrec(first))
    await peer.expect(pubrel(first))
    await leave(server, peer)
    again = await lasting(server, AGAIN)
    await again.expect(pubrel(first), delivered(2, ANOTHER, qos=2, dup=True))
    await again.send(pubcomp(first))
    await again.expect_nothing()
    await leave(server, again)
    third = await lasting(server, AGAIN)
    await third.expect(delivered(2, ANOTHER, qos=2, dup=True))


async def test_a_newer_connection_takes_the_session_over(server: Server) -> None:
    older = await lasting(server)
    await older.send(subscribe(ACTIONS, qos=1))
    await older.expect(suback(1))
    await act(server.services)
    await older.expect(delivered(1))
    newer = await lasting(server, AGAIN)
    await older.expect_end()
    await newer.expect(delivered(1, dup=True))
    await act(server.services, data=ANOTHER)
    await newer.expect(delivered(2, ANOTHER))
    await newer.send(acknowledgement(1), acknowledgement(2))
    await newer.expect_nothing()


async def test_no_more_actions_wait_than_the_bound(server: Server) -> None:
    peer = await lasting(server)
    await peer.send(subscribe(ACTIONS, qos=1))
    await peer.expect(suback(1))
    await leave(server, peer)
    device = await server.services.devices.registry.find(KITCHEN)
    for number in range(MQTT_WAITING_MESSAGES + 5):
        data = b'{"actions":[{"name":"n%d"}]}' % number
        server.services.messages.ingest.submit_action(device, device, data)
    await server.services.messages.ingest.wait_committed()
    again = await lasting(server, AGAIN)
    head, body = await again.packet()
    assert head == 0x32
    assert body.endswith(b'{"actions":[{"name":"n5"}]}')


async def test_a_device_takes_no_more_at_once_than_its_receive_maximum(server: Server) -> None:
    peer = await server.dial()
    await peer.send(connect(level=5, client_id=b"c", properties=Properties(receive_maximum=1)))
    await connack(peer)
    await peer.send(subscribe_5(ACTIONS, options=1))
    await peer.packet()
    await act(server.services)
    await act(server.services)
    assert (await peer.packet())[0] == 0x32
    await peer.expect_nothing()
    await peer.send(acknowledgement(1))
    assert (await peer.packet())[0] == 0x32


# --- Wills ----------------------------------------------------------------------------------------------------------

LATE = Will(MESSAGES, ON, 0, False, Properties(will_delay=30))


async def test_a_will_waits_for_its_delay(server: Server, autojump_clock: MockClock) -> None:
    peer = await lasting_5(server, will=LATE)
    await leave(server, peer)
    await trio.sleep(29)
    assert await server.stored() == []
    await trio.sleep(2)
    await server.services.messages.ingest.wait_committed()
    assert await server.stored() == [ON.decode()]


async def test_a_will_is_not_spoken_when_the_session_goes_on(server: Server, autojump_clock: MockClock) -> None:
    peer = await lasting_5(server, will=LATE)
    await leave(server, peer)
    await trio.sleep(10)
    await lasting_5(server, 1)
    await trio.sleep(60)
    assert await server.stored() == []


async def test_a_will_is_spoken_at_once_when_its_session_ends(server: Server) -> None:
    peer = await lasting_5(server, will=LATE)
    await leave(server, peer)
    again = await server.dial()
    await again.send(connect(level=5, client_id=b"c"))
    await connack(again)
    await server.services.messages.ingest.wait_committed()
    assert await server.stored() == [ON.decode()]


# --- Restarts -------------------------------------------------------------------------------------------------------


async def test_a_session_outlives_the_daemon(opener: ServicesOpener, runner: Runner) -> None:
    async with running(opener, runner) as server:
        peer = await lasting(server)
        await peer.send(subscribe(ACTIONS, qos=1), publish(7, qos=2))
        await peer.expect(suback(1), pubrec(7))
        await act(server.services)
        await peer.expect(delivered(1))
    async with running(opener, runner) as server:
        await act(server.services, data=ANOTHER)
        again = await lasting(server, AGAIN)
        await again.expect(delivered(1, dup=True), delivered(2, ANOTHER))
        await again.send(publish(7, qos=2, dup=True))
        await again.expect(pubrec(7))
        assert len(await server.stored()) == 1
