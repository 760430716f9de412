"""The CoAP listener over plain UDP: datagrams between a socket and the endpoint.

One task reads. It takes as many datagrams as have come, hands them over and attaches one callback for everything that
must become durable first. Answers go out at once: what the socket does not take is lost, and the peer asks again.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from socket import AI_PASSIVE, SO_RCVBUF, SO_SNDBUF, SOCK_DGRAM, SOL_SOCKET, socket
from typing import Any

import trio

from broker.errors import StorageUnavailable
from broker.services import Services
from config.settings import Address
from protocols.coap.endpoint import Endpoint, new_guard

#: More than any request of ours: a body of 2 KiB, a token, and the options of a long path.
DATAGRAM_BYTES = 4096
DATAGRAMS_PER_WAKE_UP = 256
GOODBYE_SECONDS = 1.0
_BUFFER_BYTES = 4 * 1024 * 1024


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
    with await open_socket(bind) as sock:
        try:
            async with trio.open_nursery() as nursery:
                endpoint.start(nursery)
                task_status.started(address_of(sock))
                await _read_forever(services, endpoint, sock)
        finally:
            await say_goodbye(services, endpoint)


async def open_socket(bind: Address) -> socket:
    """A bound UDP socket that never blocks."""
    found = await trio.socket.getaddrinfo(bind.host, bind.port, type=SOCK_DGRAM, flags=AI_PASSIVE)
    family, kind, protocol, _, address = found[0]
    sock = socket(family, kind, protocol)
    try:
        sock.setblocking(False)
        for option in (SO_RCVBUF, SO_SNDBUF):
            with suppress(OSError):  # a smaller one only loses more in a burst
                sock.setsockopt(SOL_SOCKET, option, _BUFFER_BYTES)
        sock.bind(address)
    except OSError:
        sock.close()
        raise
    return sock


def address_of(sock: socket) -> Address:
    host, port = sock.getsockname()[:2]
    return Address(host, port)


async def _read_forever(services: Services, endpoint: Endpoint, sock: socket) -> None:
    ingest = services.ingest
    send_to = partial(_send, endpoint, sock.sendto)
    receive, recvfrom = endpoint.receive_from, sock.recvfrom
    while True:
        await trio.lowlevel.wait_readable(sock)
        for _ in range(DATAGRAMS_PER_WAKE_UP):
            try:
                datagram, address = recvfrom(DATAGRAM_BYTES)
            except BlockingIOError:
                break
            except OSError:  # an ICMP error about something sent earlier
                continue
            receive(address, datagram, send_to)
        endpoint.submitted()
        if not ingest.has_room:
            await ingest.wait_room()


def _send(endpoint: Endpoint, sendto: Callable[[bytes, Any], int], address: Any, datagram: bytes) -> None:
    try:
        sendto(datagram, address)
    except OSError:  # no room, no route, no such port
        endpoint.datagrams_lost += 1


async def say_goodbye(services: Services, endpoint: Endpoint) -> None:
    """What was accepted is answered when it is durable; observers learn that it is over."""
    with trio.move_on_after(GOODBYE_SECONDS, shield=True):
        endpoint.submitted()
        with suppress(StorageUnavailable):
            await services.ingest.wait_committed()
        endpoint.shut_down()
