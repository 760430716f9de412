"""The peer of the connection that the current task serves.

All tasks of a connection share one `Peer`: a listener sets it before the connection's first byte is read.
"""

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

from broker.accounts.tokens import Caller
from broker.limits.sockets import Held, Sockets, holders_of, holders_of_device
from broker.limits.strangers import Place
from protocols.streams.lingering import Lingering
from protocols.streams.turnstile import Turnstile


@dataclass(eq=False, slots=True)
class Peer:
    """The client, and not the proxy before it. `address` is empty where it is unknown."""

    address: str = ""
    port: int = 0
    #: Whether the other end of the connection is a trusted proxy whose requests name the client.
    is_proxy: bool = False
    #: The place that the connection takes until the peer is authenticated; None afterwards.
    place: Place | None = None
    #: Shared by the listener's connections.
    turnstile: Turnstile | None = None
    lingering: Lingering | None = None
    #: Where the connection is counted, and as whose it counts once somebody is authenticated on it.
    sockets: Sockets | None = None
    held: Held | None = None
    held_for: bytes | str = b""


_current: Final[ContextVar[Peer]] = ContextVar("peer")


def current_peer() -> Peer:
    """The peer of this task's connection; one without an address in a task that serves none."""
    return _current.get(None) or Peer()


def set_peer(peer: Peer) -> None:
    """Set the peer that this task, and the tasks that it starts, serve. For listeners."""
    _current.set(peer)


async def turn_of_strangers(turnstile: Turnstile | None = None) -> None:
    """Wait until this connection may go on, if nobody is authenticated on it. The caller has waited for the peer, who
    may have woken hundreds of connections at one moment. `turnstile` is by default the listener's."""
    peer = _current.get(None)
    if peer is None or peer.place is None:
        return
    if (turnstile := turnstile or peer.turnstile) is not None:
        await turnstile.enter()


def authenticated(caller: Caller | None = None, *, device: str = "", owner: str = "", is_feed: bool = False) -> None:
    """The peer has proved who it is: from now on its connection is not one of a stranger (reference 21.6), and counts
    for its caller, or for the device and the owner of these ids (21.8). Where it counted for others, it counts for
    these instead.

    Raises TooManyConnections; then it is a stranger's as before.
    """
    peer = _current.get(None)
    if peer is None:
        return
    sockets, held, whose = peer.sockets, peer.held, device if caller is None else caller.token
    if sockets is not None and whose and (held is None or peer.held_for != whose or held.is_feed != is_feed):
        holders = holders_of_device(device, owner) if caller is None else holders_of(caller)
        peer.held, peer.held_for = sockets.hold(holders, is_feed=is_feed, instead=held), whose
    if peer.place is not None:
        peer.place.leave()
        peer.place = None


def ended(peer: Peer) -> None:
    """Note the end of the connection; called by listeners."""
    if peer.place is not None:
        peer.place.leave()
    if peer.held is not None and peer.sockets is not None:
        peer.sockets.release(peer.held)
        peer.held = None
