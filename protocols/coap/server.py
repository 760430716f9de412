"""The CoAP listener over plain UDP: datagrams between a socket and the endpoint.

One task reads. At each wake-up it hands over all datagrams that have come, then registers one callback for the commit
of their messages. A response is sent at once or lost; a peer whose response is lost asks again.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import trio

from config.settings import Address
from protocols.coap.echo import new_guard
from protocols.coap.endpoint import CoapEndpoint
from protocols.coap.sockets import DatagramSockets, read_forever
from protocols.rooms import CoapRooms


async def serve_coap(
    rooms: CoapRooms,
    bind: Address,
    *,
    endpoint: CoapEndpoint | None = None,
    task_status: trio.TaskStatus[Address] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled, then tell every observer.

    Args:
        rooms: the broker.
        bind: where to listen.
        endpoint: what serves, for a caller that reads its statistics; by default a new one.
        task_status: gets the bound address.

    Raises:
        OSError: the address cannot be bound.
    """
    endpoint = endpoint or CoapEndpoint(rooms, guard=new_guard())
    with await DatagramSockets.bound(bind) as sock:
        take = partial(endpoint.receive_from, partial(_send, endpoint, sock.send))
        try:
            async with trio.open_nursery() as nursery:
                endpoint.start(nursery)
                task_status.started(sock.address)
                await read_forever(sock, rooms.messages.ingest, take, endpoint.submitted)
        finally:
            await endpoint.stop()


def _send(endpoint: CoapEndpoint, send: Callable[[bytes, Any], int], address: Any, datagram: bytes) -> None:
    try:
        send(datagram, address)
    except OSError:  # no room, no route, no such port
        endpoint.datagrams_lost += 1
