"""A device on MQTT, by amqtt's client, which shares no code with the daemon."""

import asyncio
import logging

import msgspec
from amqtt.client import MQTTClient
from amqtt.errors import AMQTTError, ClientError, ConnectError
from amqtt.mqtt.constants import QOS_0, QOS_1

from protocols.cli.simulated.simulation import LinkLostError, RefusedError, Simulation
from protocols.cli.simulated.waiting import answered_within, first_to_end

_ANSWER_SECONDS = 30
_REFUSALS = (4, 5)  # CONNACK: bad credentials, not authorized
_REFUSED_TOPIC = 0x80
# amqtt drops its session when the connection ends; if it waits for a PUBACK then, it raises AttributeError.
_LOST = (AMQTTError, ClientError, OSError, TimeoutError, AttributeError)


def run(simulation: Simulation) -> None:
    """Send until the simulation is finished. Raises LinkLostError or RefusedError."""
    for library in ("amqtt", "transitions"):
        logging.getLogger(library).setLevel(logging.CRITICAL)  # `trunkline simulate` reports errors itself
    try:
        asyncio.run(_converse(simulation))
    except ConnectError as error:
        if getattr(error, "return_code", None) in _REFUSALS:
            raise RefusedError(f"CONNACK {error.return_code}") from error
        raise LinkLostError(str(error)) from error
    except _LOST as error:
        raise LinkLostError(f"the connection is gone: {error or type(error).__name__}") from error


async def _converse(simulation: Simulation) -> None:
    client = MQTTClient(config={"auto_reconnect": False, "connection_timeout": 10, "keep_alive": 30})
    host = f"[{simulation.host}]" if ":" in simulation.host else simulation.host
    await client.connect(f"mqtt://{simulation.device}:{simulation.token}@{host}:{simulation.port}/")
    try:
        await _exchange(client, simulation)
    finally:
        await client.disconnect()


async def _exchange(client: MQTTClient, simulation: Simulation) -> None:
    actions, errors = f"/v1.1/actions/{simulation.device}", f"/v1.1/errors/{simulation.device}"
    topics = [(topic, QOS_0) for topic in (actions, errors, f"/v1.1/wanted/{simulation.device}")]
    granted = await answered_within(_ANSWER_SECONDS, client.subscribe(topics))
    if _REFUSED_TOPIC in granted:
        raise RefusedError(f"subscription to {actions} or {errors}")
    for task in await first_to_end(_send(client, simulation), _receive(client, simulation, errors)):
        # amqtt cancels the task that waits for a message when the connection ends.
        if task.cancelled():
            raise LinkLostError("the connection was closed")
        task.result()


async def _send(client: MQTTClient, simulation: Simulation) -> None:
    topic = f"/v1.1/messages/{simulation.device}"
    while not simulation.is_finished:
        payload = msgspec.json.encode(simulation.next_data())
        await answered_within(_ANSWER_SECONDS, client.publish(topic, payload, qos=QOS_1))
        simulation.acknowledged()
        if not simulation.is_finished:
            await asyncio.sleep(simulation.period_seconds)


async def _receive(client: MQTTClient, simulation: Simulation, errors: str) -> None:
    while True:
        message = await client.deliver_message()
        if message is None or message.data is None:
            continue
        content = msgspec.json.decode(bytes(message.data))
        if message.topic == errors:
            simulation.refused_once(content["error"])
        elif message.topic.startswith("/v1.1/wanted/"):
            simulation.takes(content["data"])
        else:
            simulation.received(content if isinstance(content, dict) else {"actions": content})
