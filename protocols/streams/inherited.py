"""Listeners whose sockets systemd has opened (sd_listen_fds(3)): LISTEN_PID, LISTEN_FDS and LISTEN_FDNAMES.

The name of a socket is that of a listener, as in the ready line. systemd keeps the sockets while the daemon restarts,
so clients wait then and are not refused; and it may open ports below 1024, which the daemon may not.
"""

import os
import socket
from collections.abc import Collection, Mapping, MutableMapping, Sequence
from contextvars import ContextVar
from typing import Final

import trio

from config.settings import Address
from protocols.streams.binding import open_sockets

_FIRST: Final = 3

Sockets = Mapping[str, Sequence[socket.socket]]

#: The names of the listeners by their settings.
NAMES: Final = {
    "http.bind": "http",
    "http.tls_bind": "https",
    "accounts.tls_bind": "accounts",
    "secure.tls_bind": "secure",
    "mqtt.bind": "mqtt",
    "mqtt.tls_bind": "mqtts",
    "coap.bind": "coap",
    "coap.dtls_bind": "coaps",
    "lwm2m.dtls_bind": "lwm2m_dtls",
    "lwm2m.tcp_bind": "lwm2m_tcp",
    "lwm2m.tls_bind": "lwm2m_tls",
}
#: The sockets of the listener that this task opens.
_given: ContextVar[Sequence[socket.socket]] = ContextVar("given_sockets", default=())


class InheritedError(OSError):
    """A socket that systemd has passed cannot be used. `strerror` is one line for the operator."""

    def __init__(self, reason: str) -> None:
        super().__init__(0, reason)


def inherited_sockets(
    listeners: Collection[str], environ: MutableMapping[str, str] = os.environ, *, first: int = _FIRST
) -> Sockets:
    """The sockets that systemd has passed to this process, by listener; from now on they belong to the caller.

    Args:
        listeners: the names of the listeners in the configuration.
        environ: the variables; they are removed, so that child processes do not take the sockets for theirs.
        first: the number of the first descriptor.

    Raises:
        InheritedError: a name is that of no listener, or the variables are not those of systemd.
    """
    pid, count = environ.pop("LISTEN_PID", ""), environ.pop("LISTEN_FDS", "")
    names = environ.pop("LISTEN_FDNAMES", "").split(":")
    if pid != str(os.getpid()) or not count:
        return {}
    if not count.isdecimal() or len(names) != int(count):
        raise InheritedError(f"LISTEN_FDS={count} and LISTEN_FDNAMES={':'.join(names)} do not fit together")
    found: dict[str, list[socket.socket]] = {}
    for descriptor, name in enumerate(names, first):
        if name not in listeners:
            allowed = ", ".join(listeners)
            raise InheritedError(
                f"systemd has passed a socket {name!r}: FileDescriptorName must name a listener of the configuration"
                f" ({allowed})"
            )
        try:
            os.set_inheritable(descriptor, False)
            sock = socket.socket(fileno=descriptor)
        except OSError as error:
            raise InheritedError(f"descriptor {descriptor}, {name}: {error.strerror}") from error
        sock.setblocking(False)
        found.setdefault(name, []).append(sock)
    return found


def copies_of_inherited(listeners: Collection[str]) -> Sockets:
    """The sockets that `inherited_sockets` gives later, under other numbers: closing these closes none of those."""
    environ = dict(os.environ)
    found: dict[str, list[socket.socket]] = {}
    for name, sockets in inherited_sockets(listeners, environ).items():
        found[name] = [sock.dup() for sock in sockets]
        for sock in sockets:
            sock.detach()
        for copy in found[name]:
            copy.setblocking(False)
    return found


def pass_sockets(sockets: Sequence[socket.socket]) -> None:
    """Have this task, and the tasks that it starts, open these sockets; none: the addresses of the configuration."""
    _given.set(sockets)


async def open_tcp(bind: Address, *, backlog: int) -> list[trio.SocketListener]:
    """Open the sockets that were handed over, else the addresses. Raises OSError."""
    given = _given.get()
    if not given:
        given = await open_sockets(bind, socket.SOCK_STREAM, backlog=backlog)
    for sock in given:
        if sock.type != socket.SOCK_STREAM or not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            raise InheritedError("systemd must pass a socket of ListenStream=")
    return [trio.SocketListener(trio.socket.from_stdlib_socket(sock)) for sock in given]


async def open_udp(bind: Address) -> Sequence[socket.socket]:
    """As `open_tcp`."""
    given = _given.get()
    if any(sock.type != socket.SOCK_DGRAM for sock in given):
        raise InheritedError("systemd must pass a socket of ListenDatagram=")
    return given or await open_sockets(bind, socket.SOCK_DGRAM)
