"""A device on MQTT, through amqtt's client: it shares no code with the daemon it talks to."""

import asyncio
import logging
from contextlib import suppress

import msgspec
from amqtt.client import MQTTClient
from amqtt.errors import AMQTTError, ClientError, ConnectError
from amqtt.mqtt.constants import QOS_0, QOS_1

from protocols.cli.simulated.plan import LinkLostError, Plan, RefusedError
from protocols.cli.simulated.waiting import within

_ANSWER_SECONDS = 30
_REFUSALS = (4, 5)  # CONNACK: bad credentials, not authorized
_REFUSED_TOPIC = 0x80
# amqtt forgets its session when the connection ends, and stumbles over that when it was waiting for a PUBACK.
_LOST = (AMQTTError, ClientError, OSError, TimeoutError, AttributeError)


def run(plan: Plan) -> None:
    """Send until the plan is finished. Raises LinkLostError or RefusedError."""
    for library in ("amqtt", "transitions"):
        logging.getLogger(library).setLevel(logging.CRITICAL)  # what is wrong is said here, once
    try:
        asyncio.run(_converse(plan))
    except ConnectError as error:
        if getattr(error, "return_code", None) in _REFUSALS:
            raise RefusedError(f"CONNACK {error.return_code}") from error
        raise LinkLostError(str(error)) from error
    except _LOST as error:
        raise LinkLostError(f"the connection is gone: {error or type(error).__name__}") from error


async def _converse(plan: Plan) -> None:
    client = MQTTClient(config={"auto_reconnect": False, "connection_timeout": 10, "keep_alive": 30})
    host = f"[{plan.host}]" if ":" in plan.host else plan.host
    await client.connect(f"mqtt://{plan.device}:{plan.token}@{host}:{plan.port}/")
    try:
        await _exchange(client, plan)
    finally:
        await client.disconnect()


async def _exchange(client: MQTTClient, plan: Plan) -> None:
    actions, errors = f"/v1.1/actions/{plan.device}", f"/v1.1/errors/{plan.device}"
    granted = await within(_ANSWER_SECONDS, client.subscribe([(actions, QOS_0), (errors, QOS_0)]))
    if _REFUSED_TOPIC in granted:
        raise RefusedError(f"subscription to {actions} or {errors}")
    tasks = {asyncio.create_task(_send(client, plan)), asyncio.create_task(_receive(client, plan, errors))}
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await task
    for task in done:
        # amqtt cancels whoever waits for a message when the connection ends.
        if task.cancelled():
            raise LinkLostError("the connection was closed")
        task.result()


async def _send(client: MQTTClient, plan: Plan) -> None:
    topic = f"/v1.1/messages/{plan.device}"
    while not plan.is_finished:
        payload = msgspec.json.encode(plan.next_data())
        await within(_ANSWER_SECONDS, client.publish(topic, payload, qos=QOS_1))
        plan.acknowledged()
        if not plan.is_finished:
            await asyncio.sleep(plan.period_seconds)


async def _receive(client: MQTTClient, plan: Plan, errors: str) -> None:
    while True:
        message = await client.deliver_message()
        if message is None or message.data is None:
            continue
        content = msgspec.json.decode(bytes(message.data))
        if message.topic == errors:
            plan.refused_once(content["error"])
        else:
            plan.received(content if isinstance(content, dict) else {"actions": content})
