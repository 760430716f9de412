"""Devices that speak MQTT with aiomqtt and gmqtt, on an asyncio loop of their own in a thread of their own."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import aiomqtt
import gmqtt
import pytest

from tests.daemon import Daemon, device_id, device_token
from tests.e2e.conftest import Rest
from tests.e2e.test_amqtt import PATIENCE_SECONDS, in_a_thread

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")


@pytest.mark.parametrize("version", [aiomqtt.ProtocolVersion.V311, aiomqtt.ProtocolVersion.V5])
def test_aiomqtt_publishes_and_hears_actions(
    daemon: Daemon, rest: Rest, new_device: Callable[[], int], version: aiomqtt.ProtocolVersion
) -> None:
    number = new_device()
    did = device_id(number)

    async def talk() -> object:
        host, port = daemon.host_port("mqtt")
        async with aiomqtt.Client(host, port, username=did, password=device_token(number), protocol=version) as client:
            for qos in (0, 1, 2):
                await client.publish(f"/v1.1/messages/{did}", f'{{"intensity":{qos}}}', qos=qos)
            await client.subscribe(f"/v1.1/actions/{did}")
            await asyncio.to_thread(rest.act, number, {"name": "setOn"})
            message = await anext(aiter(client.messages))
            assert isinstance(message.payload, bytes)
            return json.loads(message.payload)

    assert in_a_thread(talk) == {"actions": [{"name": "setOn"}]}
    assert [message["data"]["intensity"] for message in rest.last(number)] == [2, 1, 0]


@pytest.mark.parametrize("version", [gmqtt.constants.MQTTv311, gmqtt.constants.MQTTv50])
def test_gmqtt_publishes_and_hears_actions(
    daemon: Daemon, rest: Rest, new_device: Callable[[], int], version: int
) -> None:
    number = new_device()
    did = device_id(number)

    async def talk() -> object:
        heard: asyncio.Queue[bytes] = asyncio.Queue()
        subscribed = asyncio.Event()
        client = gmqtt.Client(f"g{number}")

        async def on_message(_client: object, _topic: str, payload: bytes, _qos: int, _properties: Any) -> int:
            heard.put_nowait(payload)
            return 0

        client.on_message = on_message
        client.on_subscribe = lambda *_: subscribed.set()
        client.set_auth_credentials(did, device_token(number))
        host, port = daemon.host_port("mqtt")
        await client.connect(host, port, version=version)
        for qos in (0, 1, 2):
            client.publish(f"/v1.1/messages/{did}", f'{{"intensity":{qos}}}', qos=qos)
        client.subscribe(f"/v1.1/actions/{did}")
        await subscribed.wait()  # the messages came before, so they are stored before the Action
        await asyncio.to_thread(rest.act, number, {"name": "setOn"})
        payload = await asyncio.wait_for(heard.get(), PATIENCE_SECONDS)
        await client.disconnect()
        return json.loads(payload)

    assert in_a_thread(talk) == {"actions": [{"name": "setOn"}]}
    assert sorted(message["data"]["intensity"] for message in rest.last(number)) == [0, 1, 2]
