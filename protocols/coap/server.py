"""The CoAP listener over plain UDP: datagrams between a socket and the endpoint.

One task reads. It takes as many datagrams as have come, hands them over and attaches one callback for everything that
must become durable first. Answers go out at once: what the socket does not take is lost, and the peer asks again.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import trio

from broker.errors import StorageUnavailable
from broker.services import Services
from config.settings import Address
from protocols.coap.echo import new_guard
from protocols.coap.endpoint import Endpoint
from protocols.coap.sockets import DatagramSocket, PeerAddress, read_forever

GOODBYE_SECONDS = 1.0


async def serve_coap(
    services: Services,
    bind: Address,
    *,
    endpoint: Endpoint | None = None,
    task_status: trio.TaskStatus[Address] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled; then tell every observer. Raises OSError when the address cannot be bound.

    Args:
        services: the broker.
        bind: where to listen.
        endpoint: one to look into from outside; by default one of its own.
        task_status: told the bound address.
    """
    endpoint = endpoint or Endpoint(services, guard=new_guard())
    with await DatagramSocket.bound(bind) as sock:
        try:
            async with trio.open_nursery() as nursery:
                endpoint.start(nursery)
                task_status.started(sock.address)
                await read_forever(sock, services.messages.ingest, _taker(endpoint, sock), endpoint.submitted)
        finally:
            await say_goodbye(services, endpoint)


def _taker(endpoint: Endpoint, sock: DatagramSocket) -> Callable[[bytes, PeerAddress], None]:
    receive, send_to = endpoint.receive_from, partial(_send, endpoint, sock.send)
    return lambda datagram, address: receive(address, datagram, send_to)


def _send(endpoint: Endpoint, send: Callable[[bytes, Any], int], address: Any, datagram: bytes) -> None:
    try:
        send(datagram, address)
    except OSError:  # no room, no route, no such port
        endpoint.datagrams_lost += 1


async def say_goodbye(services: Services, endpoint: Endpoint) -> None:
    """What was accepted is answered when it is durable; observers learn that it is over."""
    with trio.move_on_after(GOODBYE_SECONDS, shield=True):
        endpoint.submitted()
        with suppress(StorageUnavailable):
            await services.messages.ingest.wait_committed()
        endpoint.shut_down()
