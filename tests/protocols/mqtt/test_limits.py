"""Rate limits and quotas over MQTT: acknowledged, dropped, told on the errors topic (reference 16.3, 16.4)."""

import json

import pytest

from broker.limits.overhead import FRAMES_AT_ONCE
from broker.services import Services
from config.limits import PACKETS_PER_TURN
from config.settings import Limits, Settings
from protocols.mqtt.packets import Will
from storage.transaction import Transaction
from tests.factories import ACME, HALL, HALL_TOKEN, KITCHEN, NOW_MS, World
from tests.fakes import FakeClock
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
    pubrec,
    pubrel,
    refused,
    suback,
    subscribe,
)

MIDNIGHT = NOW_MS - NOW_MS % 86_400_000 + 86_400_000


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return Settings(state_dir=settings.state_dir, limits=Limits(mqtt_device="5/8"))


async def expect_limit(peer: Peer, window: str, remaining: str, reset_on: int = NOW_MS // 1000 + 60) -> None:
    topic, payload = await peer.expect_delivery()
    error = json.loads(payload)["error"]
    assert topic == ERRORS
    assert len(error.pop("id")) == 32
    assert error == {
        "code": 429,
        "message": f"DEVICE {window} rate limit exceeded",
        "X-Rate-Limit-Limit": "5/8",
        "X-Rate-Limit-Remaining": remaining,
        "X-Rate-Limit-Reset": f"{reset_on}/{MIDNIGHT // 1000}",
    }


async def test_a_burst_that_exceeds_the_limit_in_its_middle_is_acknowledged_as_a_whole(server: Server) -> None:
    peer = await server.connected(topics=[ERRORS])
    qualities = [1, 2, 0, 1, 2, 1, 2, 0, 1]
    await peer.send(*(publish(number, qos=qos) for number, qos in enumerate(qualities, start=1)))
    for _ in range(4):
        await expect_limit(peer, "MINUTE", "0/3")
    await peer.expect(puback(1), puback(4), puback(6), puback(9), pubrec(2), pubrec(5), pubrec(7))
    await peer.send(pubrel(2), pubrel(5), pubrel(7))
    await peer.expect(pubcomp(2), pubcomp(5), pubcomp(7))
    assert len(await server.stored()) == 5


async def test_a_message_over_the_limit_is_not_stored_even_when_it_is_sent_again(server: Server) -> None:
    peer = await server.connected()
    await peer.send(*(publish(number) for number in range(1, 7)))
    await peer.expect(*map(puback, range(1, 7)))
    await peer.send(publish(6, dup=True))
    await peer.expect(puback(6))
    assert len(await server.stored()) == 5


async def test_a_message_refused_for_another_reason_counts(server: Server, fake_clock: FakeClock) -> None:
    peer = await server.connected(topics=[ERRORS])
    await peer.send(publish(1, b"{"), publish(2, topic=b"/v1.1/messages/" + HALL.encode()))
    await peer.expect_error(400, "Bad Request")
    await peer.expect_error(403, "You do not have publish permission to topic")
    await peer.expect(puback(1), puback(2))
    await peer.send(*(publish(number) for number in range(3, 7)))
    await expect_limit(peer, "MINUTE", "0/3")
    await peer.expect(*map(puback, range(3, 7)))


async def test_a_device_has_one_limit_on_all_its_connections(server: Server) -> None:
    for _ in range(5):
        peer = await server.connected()
        await peer.send(publish(1))
        await peer.expect(puback(1))
        await peer.stream.aclose()
    again = await server.dial()
    await again.send(connect())
    await again.expect(refused(3))
    await again.expect_end()
    await server.connected(HALL, HALL_TOKEN)


async def test_after_the_minute_a_device_may_connect_and_send_again(server: Server, fake_clock: FakeClock) -> None:
    peer = await server.connected()
    await peer.send(*(publish(number) for number in range(1, 6)))
    await peer.expect(*map(puback, range(1, 6)))
    fake_clock.advance(60_000)
    other = await server.dial()
    await other.send(connect())
    await other.expect(ACCEPTED)
    await other.send(*(publish(number) for number in range(1, 4)))
    await other.expect(*map(puback, range(1, 4)))
    await other.send(publish(4))
    await other.expect(puback(4))
    fourth = await server.dial()
    await fourth.send(connect())
    await fourth.expect(refused(3))


async def test_the_daily_limit_has_a_text_of_its_own(server: Server, fake_clock: FakeClock) -> None:
    peer = await server.connected(topics=[ERRORS])
    await peer.send(*(publish(number) for number in range(1, 6)))
    await peer.expect(*map(puback, range(1, 6)))
    fake_clock.advance(60_000)
    await peer.send(*(publish(number) for number in range(1, 5)))
    await expect_limit(peer, "DAILY", "2/0", NOW_MS // 1000 + 120)
    await peer.expect(*map(puback, range(1, 5)))


async def test_a_subscription_over_its_own_limit_is_refused_and_told(server: Server, fake_clock: FakeClock) -> None:
    peer = await server.connected(topics=[ERRORS])
    await peer.send(*(subscribe(ACTIONS, number=number) for number in range(2, 7)))
    await peer.expect(*(suback(0, number=number) for number in range(2, 6)), suback(0x80, number=6))
    await expect_limit(peer, "MINUTE", "0/8")
    fake_clock.advance(60_000)
    await peer.send(subscribe(ACTIONS, number=7))
    await peer.expect(suback(0, number=7))


async def test_what_is_no_message_leaves_the_messages_of_the_minute_and_the_day(server: Server) -> None:
    """Pings, subscriptions, and acknowledgements of nothing have an allowance of their own, and are answered beyond."""
    peer = await server.connected(topics=[ERRORS])
    await peer.send(PINGREQ * 6, puback(77), subscribe(ACTIONS, number=2))
    await peer.expect(PINGRESP * 6, suback(0x80, number=2))
    await expect_limit(peer, "MINUTE", "0/8")
    await peer.send(*(publish(number) for number in range(1, 6)))
    await peer.expect(*map(puback, range(1, 6)))
    await peer.send(publish(6))
    await expect_limit(peer, "MINUTE", "0/3")
    await peer.expect(puback(6))


async def test_a_device_that_has_used_up_its_messages_may_still_subscribe_and_ping(server: Server) -> None:
    peer = await server.connected()
    await peer.send(*(publish(number) for number in range(1, 8)))
    await peer.expect(*map(puback, range(1, 8)))
    await peer.send(subscribe(ACTIONS, ERRORS), PINGREQ)
    await peer.expect(suback(0, 0), PINGRESP)


async def test_a_flood_of_pings_beyond_the_limit_ends_the_connection(server: Server) -> None:
    peer = await server.connected()
    await peer.send(PINGREQ * 1_000)
    answered = b""
    while received := await peer.stream.receive_some():
        answered += received
    assert set(answered[::2]) == {PINGRESP[0]}
    assert FRAMES_AT_ONCE <= len(answered) // 2 < PACKETS_PER_TURN


async def test_who_publishes_beyond_the_limit_may_ping_as_its_keep_alive_demands(server: Server) -> None:
    """A refused message is acknowledged and the connection stays (reference 16.3), however many there are."""
    peer = await server.connected()
    await peer.send(publish(1, qos=0) * (10 * FRAMES_AT_ONCE))
    await peer.send(PINGREQ)
    await peer.expect(PINGRESP)
    await peer.send(publish(7), PINGREQ)
    await peer.expect(PINGRESP, puback(7))


async def test_a_will_over_the_limit_is_not_published(server: Server) -> None:
    peer = await server.connected(will=Will(MESSAGES, b'{"state":false}', 0, False))
    await peer.send(*(publish(number) for number in range(1, 6)))
    await peer.expect(*map(puback, range(1, 6)))
    await peer.stream.aclose()
    assert await server.stored() == ['{"state":true}'] * 5


@pytest.mark.parametrize(
    ("monthly", "daily", "code", "text"),
    [
        (1, None, 429, f"Plan quota exceeded for organization {ACME}. Reason: Monthly message limit"),
        (-2, None, 400, f"Quota validation error for device {KITCHEN}. Reason: Plan limits have not been set."),
        (-1, 1, 429, f"Plan quota exceeded for device {KITCHEN}. Reason: Daily message limit."),
    ],
)
async def test_quota_errors_have_the_texts_of_the_table(
    services: Services, world: World, server: Server, monthly: int, daily: int | None, code: int, text: str
) -> None:
    def change(tx: Transaction) -> None:
        acme = tx.accounts.organization_by_id(ACME)
        assert acme is not None
        tx.accounts.change_organization(acme.key, name=acme.name, monthly_messages=monthly)

    await services.core.database.write(change)
    await services.limits.quotas.reload()
    services.limits.quotas.set_device_limit(world.kitchen, daily)
    peer = await server.connected(topics=[ERRORS])
    if code == 429:
        await peer.send(publish(1, ON))
        await peer.expect(puback(1))
    await peer.send(publish(2, ON))
    await peer.expect_error(code, text)
    await peer.expect(puback(2))
