"""Rate limits and quotas over CoAP: 4.29 with the seconds to wait (reference 17)."""

import json

import pytest
from trio.testing import wait_all_tasks_blocked

from broker.services import Services
from config.settings import Limits, Settings
from protocols.coap.messages import CoapMessage, Code, Option, uint
from tests.factories import HALL_TOKEN, KITCHEN, KITCHEN_TOKEN, World
from tests.fakes import FakeClock
from tests.protocols.coap.peers import Peer, option

STATE = {"data": {"state": True}}
BAD_REQUEST, TOO_MANY_REQUESTS = 0x80, 0x9D  # 4.00, and 4.29 of RFC 8516


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return Settings(state_dir=settings.state_dir, limits=Limits(coap_device="3/5"))


async def posted(peer: Peer, body: object = STATE, token: str = KITCHEN_TOKEN) -> CoapMessage:
    peer.post(token, body)
    await wait_all_tasks_blocked()
    return peer.take()


async def test_a_request_over_the_limit_is_answered_with_429_and_the_time_to_wait(
    peer: Peer, services: Services, fake_clock: FakeClock
) -> None:
    for _ in range(3):
        assert (await posted(peer)).code == Code.CREATED
    fake_clock.advance(10_000)
    answer = await posted(peer)
    assert answer.code == TOO_MANY_REQUESTS
    assert option(answer, Option.MAX_AGE) == uint(50)
    assert json.loads(answer.payload) == {"error": {"code": 429, "message": "DEVICE MINUTE rate limit exceeded"}}
    assert services.messages.ingest.statistics().messages == 3
    fake_clock.advance(50_000)
    for _ in range(2):
        assert (await posted(peer)).code == Code.CREATED
    answer = await posted(peer)
    assert json.loads(answer.payload)["error"]["message"] == "DEVICE DAILY rate limit exceeded"


async def test_invalid_requests_count_and_each_device_has_its_own_limit(peer: Peer) -> None:
    for body in (b"{", {"data": {"state": True}, "type": "action"}, {"data": {}, "ts": -1}):
        assert (await posted(peer, body)).code == BAD_REQUEST
    assert (await posted(peer)).code == TOO_MANY_REQUESTS
    assert (await posted(peer, token=HALL_TOKEN)).code == Code.CREATED


async def test_an_observation_counts_and_its_end_does_not(peer: Peer) -> None:
    for observe, code in [(0, Code.CONTENT)] * 3 + [(0, TOO_MANY_REQUESTS), (1, Code.CONTENT)]:
        option = (int(Option.OBSERVE), bytes(observe and (observe,)))
        peer.request(Code.GET, f"v1.1/actions/{KITCHEN_TOKEN}", options=[option])
        await wait_all_tasks_blocked()
        assert peer.take().code == code


async def test_an_exhausted_quota_is_answered_with_429(peer: Peer, services: Services, world: World) -> None:
    services.limits.quotas.set_device_limit(world.kitchen, 0)
    answer = await posted(peer)
    assert answer.code == TOO_MANY_REQUESTS
    assert json.loads(answer.payload) == {
        "error": {"code": 429, "message": f"Plan quota exceeded for device {KITCHEN}. Reason: Daily message limit."}
    }
