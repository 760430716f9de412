"""A device on the `/websocket` channel: registers, sends, waits for each acknowledgement, prints Actions."""

from collections.abc import Mapping
from typing import Any

import msgspec
import trio
from trio_websocket import (
    ConnectionClosed,
    ConnectionRejected,
    HandshakeError,
    WebSocketConnection,
    open_websocket,
)

from protocols.cli.failures import leaves
from protocols.cli.simulated.simulation import LinkLostError, RefusedError, Simulation

_ANSWER_SECONDS = 30
_REFUSALS = (400, 401, 403, 404)


def run(simulation: Simulation) -> None:
    """Send until the simulation is finished. Raises LinkLostError or RefusedError."""
    try:
        trio.run(_converse, simulation)
    except Exception as error:  # trio wraps errors in groups; what is not explained is raised again
        for leaf in leaves(error):
            if isinstance(leaf, RefusedError):
                raise leaf from error
            if isinstance(leaf, ConnectionRejected) and leaf.status_code in _REFUSALS:
                raise RefusedError(f"{leaf.status_code} {(leaf.body or b'').decode(errors='replace')}") from error
            if isinstance(leaf, ConnectionClosed):
                raise LinkLostError(why_closed(leaf)) from error
            if isinstance(leaf, OSError | HandshakeError | trio.TooSlowError):
                raise LinkLostError(str(leaf.__cause__ or leaf) or type(leaf).__name__) from error
        raise


def why_closed(error: ConnectionClosed) -> str:
    reason = error.reason
    return f"the daemon closed the connection: {reason.reason or reason.name}" if reason else "the connection is gone"


async def _converse(simulation: Simulation) -> None:
    async with (
        open_websocket(simulation.host, simulation.port, "/v1.1/websocket?ack=true", use_ssl=False) as socket,
        trio.open_nursery() as nursery,
    ):
        answers_in, answers = trio.open_memory_channel[dict[str, Any]](1)
        nursery.start_soon(_read, socket, simulation, answers_in)
        register = {"type": "register", "sdid": simulation.device, "Authorization": f"bearer {simulation.token}"}
        error = (await _ask(socket, answers, register)).get("error")
        if error is not None:
            raise RefusedError(f"{error.get('code')} {error.get('message')}")
        while not simulation.is_finished:
            error = (await _ask(socket, answers, {"sdid": simulation.device, "data": simulation.next_data()})).get(
                "error"
            )
            if error is None:
                simulation.acknowledged()
            else:
                simulation.refused_once(error)
            if not simulation.is_finished:
                await trio.sleep(simulation.period_seconds)
        nursery.cancel_scope.cancel()


async def _ask(
    socket: WebSocketConnection, answers: trio.MemoryReceiveChannel[dict[str, Any]], frame: Mapping[str, object]
) -> dict[str, Any]:
    with trio.fail_after(_ANSWER_SECONDS):
        await socket.send_message(msgspec.json.encode(frame).decode())
        return await answers.receive()


async def _read(
    socket: WebSocketConnection, simulation: Simulation, answers: trio.MemorySendChannel[dict[str, Any]]
) -> None:
    while True:
        frame = msgspec.json.decode(await socket.get_message(), type=dict[str, Any])
        if frame.get("type") == "action":
            simulation.received(frame.get("data") or {})
        elif "error" in frame or "data" in frame:
            await answers.send(frame)
