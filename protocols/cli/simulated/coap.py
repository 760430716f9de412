"""A simulated device on CoAP, by aiocoap's client. The daemon shares only aiocoap's encoder of options."""

import asyncio
import logging
from contextlib import suppress
from typing import Any

import aiocoap
import msgspec
from aiocoap.error import Error
from aiocoap.numbers.contentformat import ContentFormat

from protocols.cli.simulated.simulation import LinkLostError, RefusedError, Simulation
from protocols.cli.simulated.waiting import answered_within, first_to_end

_ANSWER_SECONDS = 120  # more than aiocoap takes until it gives up (RFC 7252, 4.8.2)
_CANCEL_SECONDS = 2
_REFUSALS = (aiocoap.UNAUTHORIZED, aiocoap.FORBIDDEN, aiocoap.NOT_FOUND)


def run(plan: Simulation) -> None:
    """Send until the plan is finished. Raises LinkLostError or RefusedError."""
    for name in ("coap", "coap-server"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # errors are reported by this module
    try:
        asyncio.run(_converse(plan))
    except (Error, OSError, TimeoutError) as error:
        raise LinkLostError(f"no answer: {error or type(error).__name__}") from error


async def _converse(plan: Simulation) -> None:
    context = await aiocoap.Context.create_client_context()
    try:
        await _observe_and_send(context, plan)
    finally:
        await context.shutdown()


async def _observe_and_send(context: aiocoap.Context, plan: Simulation) -> None:
    observation = context.request(aiocoap.Message(code=aiocoap.GET, uri=_uri(plan, "actions"), observe=0))
    registered = await answered_within(_ANSWER_SECONDS, observation.response)
    _raise_if_refused(registered)
    if registered.opt.observe is None:
        raise LinkLostError(f"the daemon does not let itself be observed: {registered.code}")
    try:
        ended = await first_to_end(_send(context, plan), _receive(observation, plan))
    finally:
        with suppress(Error, OSError, TimeoutError):
            cancellation = aiocoap.Message(code=aiocoap.GET, uri=_uri(plan, "actions"), observe=1)
            await answered_within(_CANCEL_SECONDS, context.request(cancellation, handle_blockwise=False).response)
    for task in ended:
        task.result()


async def _send(context: aiocoap.Context, plan: Simulation) -> None:
    while not plan.is_finished:
        message = aiocoap.Message(
            code=aiocoap.POST,
            uri=_uri(plan, "messages"),
            payload=msgspec.json.encode({"data": plan.next_data()}),
            content_format=ContentFormat.JSON,
        )
        answer = await answered_within(_ANSWER_SECONDS, context.request(message).response)
        if answer.code.is_successful():
            plan.acknowledged()
        else:
            _raise_if_refused(answer)
            plan.refused_once(_error(answer))
        if not plan.is_finished:
            await asyncio.sleep(plan.period_seconds)


async def _receive(observation: Any, plan: Simulation) -> None:
    try:
        async for notification in observation.observation:
            plan.received(msgspec.json.decode(notification.payload))
    except Error as error:
        raise LinkLostError(f"the daemon ended the observation: {error}") from error
    raise LinkLostError("the daemon ended the observation")


def _raise_if_refused(answer: aiocoap.Message) -> None:
    if answer.code in _REFUSALS:
        raise RefusedError(f"{answer.code} {answer.payload.decode(errors='replace')}")


def _error(answer: aiocoap.Message) -> dict[str, Any]:
    try:
        error: dict[str, Any] = msgspec.json.decode(answer.payload)["error"]
    except (msgspec.DecodeError, KeyError, TypeError):
        return {"code": str(answer.code), "message": ""}
    return error


def _uri(plan: Simulation, collection: str) -> str:
    host = f"[{plan.host}]" if ":" in plan.host else plan.host
    return f"coap://{host}:{plan.port}/v1.1/{collection}/{plan.token}"
