"""GET and Observe of wanted values (reference 17): the last state only, with its ETag."""

import cbor2
import msgspec
from trio.testing import wait_all_tasks_blocked

from broker.services import Services
from protocols.coap.endpoint import CoapEndpoint
from protocols.coap.messages import CBOR, CON, Code, Option, uint
from storage.keys import DeviceKey
from tests.factories import KITCHEN_TOKEN, LIGHT_TYPE, World
from tests.protocols.coap.peers import Peer, observe_number, observing, option, send_action

PATH = f"v1.1/wanted/{KITCHEN_TOKEN}"
FIELDS = [{"name": name, "valueClass": "Integer", "settable": True} for name in ("intensity", "speed")]


async def want(services: Services, key: DeviceKey, **values: int | None) -> None:
    device = await services.devices.registry.get(key)
    await services.wanted.put(device, msgspec.json.encode(values), expires_after=60, application_id=None)


async def settable(services: Services) -> None:
    await services.device_types.manifests.upload(LIGHT_TYPE, {"fields": FIELDS}, approve=True)
    await wait_all_tasks_blocked()


async def test_get_answers_only_what_has_changed(peer: Peer, services: Services, world: World) -> None:
    await settable(services)
    peer.request(Code.GET, PATH)
    await wait_all_tasks_blocked()
    assert peer.take().payload == b'{"data":{}}'
    await want(services, world.kitchen, intensity=40)
    peer.request(Code.GET, PATH)
    answer = peer.take()
    assert (answer.code, answer.payload) == (Code.CONTENT, b'{"data":{"intensity":40}}')
    tag = option(answer, Option.ETAG)
    assert tag is not None
    peer.request(Code.GET, PATH, options=[(Option.ETAG, b"other"), (Option.ETAG, tag)])
    answer = peer.take()
    assert (answer.code, answer.payload, option(answer, Option.ETAG)) == (Code.VALID, b"", tag)
    peer.request(Code.GET, PATH, options=[(Option.ETAG, tag), (Option.ACCEPT, uint(CBOR))])
    answer = peer.take()
    assert cbor2.loads(answer.payload) == {"data": {"intensity": 40}}
    await wait_all_tasks_blocked()
    assert (await services.wanted.show(await services.devices.registry.get(world.kitchen))).fields[0].state == "sent"
    peer.request(Code.POST, PATH, b"{}")
    assert peer.take().code == 0x85


async def test_a_device_has_one_observation_of_its_wanted_values(
    peer: Peer, endpoint: CoapEndpoint, services: Services, world: World
) -> None:
    """However many it asks for, so that it fills no memory."""
    await settable(services)
    for number in range(5):
        peer.request(Code.GET, PATH, options=[(Option.OBSERVE, uint(0))], token=b"w%d" % number)
        await wait_all_tasks_blocked()
    assert endpoint.statistics().observers == 1
    await want(services, world.kitchen, intensity=1)
    told = []
    while peer.inbox:
        message = peer.inbox.pop(0)
        if message.type == CON:
            told.append((message.token, message.code))
            peer.acknowledge(message)
    replaced = 0x89  # 4.09
    assert told == [(b"w0", replaced), (b"w1", replaced), (b"w2", replaced), (b"w3", replaced), (b"w4", Code.CONTENT)]


async def test_an_observer_gets_the_last_state_and_keeps_its_actions(
    peer: Peer, services: Services, world: World
) -> None:
    await settable(services)
    actions = await observing(peer)
    assert actions.code == Code.CONTENT
    peer.request(Code.GET, PATH, options=[(Option.OBSERVE, uint(0))], token=b"wn")
    first = peer.take()
    assert first.payload == b'{"data":{}}'
    for value in (1, 2, 3):
        await want(services, world.kitchen, intensity=value)
    notification = peer.take()
    assert (notification.type, notification.token, notification.payload) == (CON, b"wn", b'{"data":{"intensity":1}}')
    assert observe_number(notification) > observe_number(first)
    peer.acknowledge(notification)
    notification = peer.take()
    assert notification.payload == b'{"data":{"intensity":3}}', "the state between was the last one no more"
    assert option(notification, Option.ETAG) != option(first, Option.ETAG)
    peer.acknowledge(notification)
    await send_action(services, world.kitchen)
    assert peer.take().token == b"ob", "both observations stand"
    peer.request(Code.GET, PATH, options=[(Option.OBSERVE, uint(1))], token=b"wn")
    assert peer.take().payload == b'{"data":{"intensity":3}}'
    await want(services, world.kitchen, intensity=4)
    assert peer.inbox == []


async def test_a_value_that_came_after_the_notification_is_given_with_the_next(
    peer: Peer, services: Services, world: World
) -> None:
    await settable(services)
    peer.request(Code.GET, PATH, options=[(Option.OBSERVE, uint(0))], token=b"wn")
    await wait_all_tasks_blocked()
    peer.take()
    for value in (1, 2):
        await want(services, world.kitchen, intensity=value)
    for value, state in ((1, "waiting"), (2, "sent")):
        notification = peer.take()
        assert notification.payload == b'{"data":{"intensity":%d}}' % value
        peer.acknowledge(notification)
        await wait_all_tasks_blocked()
        shown = await services.wanted.show(await services.devices.registry.get(world.kitchen))
        assert [one.state for one in shown.fields] == [state]
