"""Devices that speak MQTT with amqtt's client, on an asyncio loop of its own in a thread of its own."""

import asyncio
import gc
import json
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest
from amqtt.client import MQTTClient
from amqtt.errors import ConnectError

from tests.daemon import Daemon, device_id, device_token
from tests.e2e.conftest import Rest

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")

PATIENCE_SECONDS = 60
T = TypeVar("T")


def in_a_thread(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """The result of an asyncio coroutine."""
    try:
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(lambda: asyncio.run(asyncio.wait_for(work(), PATIENCE_SECONDS))).result()
    finally:
        gc.collect()  # amqtt leaves a refused connection open; let it be collected where that is expected


async def connected(daemon: Daemon, number: int, *, token: str | None = None) -> MQTTClient:
    client = MQTTClient(config={"auto_reconnect": False})
    password = device_token(number) if token is None else token
    host, port = daemon.host_port("mqtt")
    await client.connect(f"mqtt://{device_id(number)}:{password}@{host}:{port}/")
    return client


def test_amqtt_publishes(daemon: Daemon, rest: Rest, new_device: Callable[[], int]) -> None:
    number = new_device()

    async def publish() -> None:
        client = await connected(daemon, number)
        topic = f"/v1.1/messages/{device_id(number)}"
        for qos in (0, 1, 2):
            await client.publish(topic, f'{{"intensity":{qos}}}'.encode(), qos=qos)
        await client.disconnect()

    in_a_thread(publish)
    assert [message["data"]["intensity"] for message in rest.last(number)] == [2, 1, 0]


def test_amqtt_hears_actions(daemon: Daemon, rest: Rest, new_device: Callable[[], int]) -> None:
    number = new_device()
    topic = f"/v1.1/actions/{device_id(number)}"

    async def listen() -> tuple[list[int], str, object]:
        client = await connected(daemon, number)
        codes = await client.subscribe([(topic, 0), ("/v1.1/actions/#", 0)])
        await asyncio.to_thread(rest.act, number, {"name": "setOn", "parameters": {"state": True}})
        message = await client.deliver_message(timeout_duration=PATIENCE_SECONDS)
        assert message is not None
        await client.disconnect()
        return codes, message.topic, json.loads(message.data)

    codes, heard_on, body = in_a_thread(listen)
    assert codes == [0, 0x80]
    assert (heard_on, body) == (topic, {"actions": [{"name": "setOn", "parameters": {"state": True}}]})


def test_amqtt_is_told_that_its_token_is_wrong(daemon: Daemon, new_device: Callable[[], int]) -> None:
    number = new_device()

    async def try_to_connect() -> int | None:
        with pytest.raises(ConnectError) as caught:
            await connected(daemon, number, token="9" * 32)
        code: int | None = caught.value.return_code
        return code

    assert in_a_thread(try_to_connect) == 4
