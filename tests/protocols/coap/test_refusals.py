"""Each refusal of CoAP leaves a line in the log with the peer's address."""

from pathlib import Path

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import wait_all_tasks_blocked

from broker.accounts.tokens import TokenKind
from broker.ids import new_id
from broker.services import Services
from broker.trace.origin import Origin, enter
from config.limits import WRONG_TOKEN_TRIES
from config.settings import Limits, Settings
from protocols.coap.endpoint import CoapEndpoint
from protocols.coap.messages import CoapMessage, Code
from tests.factories import ADA_TOKEN, HALL_TOKEN, KITCHEN, KITCHEN_TOKEN
from tests.protocols.coap.conftest import Time
from tests.protocols.coap.peers import Peer

WRONG_TOKENS = 100  # from one address are too many
BODY = {"data": {"state": True}}
FORBIDDEN, NOT_FOUND, TOO_MANY = 4 << 5 | 3, 4 << 5 | 4, 4 << 5 | 29


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(state_dir=tmp_path, limits=Limits(rate_limits="on", quotas="off", calls_per_address=WRONG_TOKENS))


async def posted(peer: Peer, token: str) -> CoapMessage:
    peer.post(token, BODY)
    await wait_all_tasks_blocked()
    return peer.take()


async def test_a_refusal_has_the_address_and_no_token(peer: Peer) -> None:
    unknown = new_id()
    with capture_logs() as logs:
        assert (await posted(peer, unknown)).code == Code.UNAUTHORIZED
        assert (await posted(peer, ADA_TOKEN)).code == FORBIDDEN
        peer.request(Code.GET, "no/such/path")
        await wait_all_tasks_blocked()
        assert peer.take().code == NOT_FOUND
    assert [(line["event"], line["peer"]) for line in logs] == [
        ("coap_credentials_refused", "192.0.2.1"),
        ("coap_refused", "192.0.2.1"),
        ("coap_refused", "192.0.2.1"),
    ]
    assert unknown not in str(logs)
    assert ADA_TOKEN not in str(logs)


async def test_a_broken_device_is_refused_and_others_behind_its_address_are_served(
    endpoint: CoapEndpoint, peer: Peer
) -> None:
    unknown = new_id()
    codes = [(await posted(peer, unknown)).code for _ in range(WRONG_TOKEN_TRIES + 1)]
    assert set(codes) == {Code.UNAUTHORIZED}
    assert (await posted(Peer(endpoint, ("192.0.2.1", 40001)), KITCHEN_TOKEN)).code == Code.CREATED


async def test_who_guesses_is_told_to_wait_and_others_are_served(endpoint: CoapEndpoint, peer: Peer) -> None:
    assert (await posted(peer, KITCHEN_TOKEN)).code == Code.CREATED
    for _ in range(WRONG_TOKENS):
        assert (await posted(peer, new_id())).code == Code.UNAUTHORIZED
    assert (await posted(peer, new_id())).code == TOO_MANY
    assert (await posted(peer, KITCHEN_TOKEN)).code == Code.CREATED  # in memory
    assert (await posted(Peer(endpoint, ("192.0.2.2", 40000)), HALL_TOKEN)).code == Code.CREATED


async def test_datagrams_with_a_forged_address_do_not_lock_it_out_of_other_protocols(
    endpoint: CoapEndpoint, services: Services, time: Time
) -> None:
    for number in range(WRONG_TOKENS):
        time.now += 0.001
        await posted(Peer(endpoint, ("192.0.2.1", 40_000 + number)), new_id())
    assert (await posted(Peer(endpoint, ("192.0.2.1", 50_000)), new_id())).code == TOO_MANY
    enter(Origin("192.0.2.1"))  # as of a connection
    assert (await services.accounts.tokens.caller(ADA_TOKEN)).kind is TokenKind.USER


async def test_what_a_device_is_refused_is_on_its_owners_page(peer: Peer, services: Services) -> None:
    """The page has kind and id of the device, also for a payload that cannot be read."""
    kitchen = await services.devices.registry.find(KITCHEN)
    for _ in range(2):  # the second time the device is known to its session
        assert (await posted(peer, KITCHEN_TOKEN)).code == Code.CREATED
        peer.post(KITCHEN_TOKEN, BODY | {"ts": -1})
        await wait_all_tasks_blocked()
        assert peer.take().code == 4 << 5
    for payload in (b"{", b'{"data":{}', b'{"data":{},"type":"x"}'):
        peer.post(KITCHEN_TOKEN, payload)
        await wait_all_tasks_blocked()
        assert peer.take().code == 4 << 5
    found = services.messages.ingest.refused.of(kitchen)
    assert {one.actor for one in found} == {f"device {KITCHEN}"}
    assert {one.text for one in found} == {"Invalid ts value", "Bad Request"}


async def test_a_wrong_token_for_a_device_is_on_its_owners_page(peer: Peer, services: Services) -> None:
    kitchen = await services.devices.registry.find(KITCHEN)
    unknown = await posted(peer, new_id())
    for sdid in (KITCHEN, KITCHEN, "f" * 32):
        peer.post(new_id(), BODY | {"sdid": sdid})
        await wait_all_tasks_blocked()
        assert peer.take().payload == unknown.payload
    with trio.fail_after(20):
        while not (found := services.messages.ingest.refused.of(kitchen)):
            await trio.lowlevel.checkpoint()
    assert [(one.status, one.text, one.actor, one.address) for one in found] == [
        (401, "CoAP: wrong credentials for this device", "", "192.0.2.1")
    ]
