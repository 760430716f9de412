"""The origin of a task's work: the peer's address, and the actor.

Front ends set it for a connection or a request. It travels with the task (PEP 567), and with a write into its
transaction (`Database.write`), so that the capabilities need not pass it on.
"""

from contextvars import Context, ContextVar
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import Final, NamedTuple


class Origin(NamedTuple):
    """`actor` is proven: `user …`, `application …` or `device …` with the id, or `operator …` with the uid.

    `account` is the id of the account or device that an unproven peer names, once it is known that there is one.
    `payer` is for whom an actor acts, where that is somebody else: the owner of a device. `holder` is the actor as the
    holder of a token (broker/accounts/tokens.py: Caller).
    """

    address: str = ""  # IP address or a name in its place; empty for the daemon's own work
    actor: str = ""
    application: str = ""  # the id of the application through which a user acts
    account: str = ""
    is_forgeable: bool = False  # the sender may have written any address into its datagrams
    payer: str = ""
    holder: object = None


_NOBODY: Final = Origin()
_listener: ContextVar[str] = ContextVar("listener", default="")
_origin: ContextVar[Origin] = ContextVar("origin", default=_NOBODY)


def current_origin() -> Origin:
    return _origin.get()


def enter(origin: Origin) -> None:
    """Have the current task work for this origin."""
    _origin.set(origin)


def current_listener() -> str:
    """The listener that this task works for, by its name in the ready line; empty for the daemon's own work."""
    return _listener.get()


def listening_as(name: str) -> None:
    """Have the current task, and the tasks that it starts, work for this listener."""
    _listener.set(name)


def origin_in(context: Context) -> Origin:
    """The origin of another task."""
    return context.get(_origin, _NOBODY)


def set_actor(actor: str, application: str = "", payer: str = "", holder: object = None) -> None:
    """The peer has proven who it is."""
    peer = _origin.get()
    _origin.set(Origin(peer.address, actor, application, peer.account, peer.is_forgeable, payer, holder))


def on_whose_account() -> str | None:
    """The key by which work of this task is shared out fairly: a user with the user's devices, an application, or the
    address of a stranger; None for the daemon's own work."""
    origin = _origin.get()
    if origin.payer or origin.actor:
        return origin.payer or origin.actor
    return address_key(origin.address) if origin.address else None


def concerning(account: str) -> None:
    """The peer names this account or device, and has not proven anything."""
    _origin.set(_origin.get()._replace(account=account))


@lru_cache(maxsize=4096)
def address_key(address: str) -> str:
    """The key under which an IP address is counted; of an IPv6 address its /64: one customer has a whole /64."""
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return f"address {address}"
    if isinstance(parsed, IPv6Address):
        if parsed.ipv4_mapped is not None:
            return f"address {parsed.ipv4_mapped}"
        return f"address {parsed.exploded[:19]}/64"
    return f"address {parsed}"
