"""Refuses what was accepted with a permission that another node has ended since (reference 27.25).

A node hears what others have ended before it stores anything more. It refuses the rows that wait then if they came with
a token, a grant or a share that is over, and with them all of their commit: nobody in it is acknowledged. Works are
refused alone.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from broker.accounts.tokens import Caller, TokenKind
from broker.facts import (
    ApplicationGrantsChanged,
    DeviceDeleted,
    DeviceDisabled,
    DeviceHandedOver,
    GrantsChanged,
    SessionsEnded,
    SharesChanged,
    TokenRevoked,
)
from storage.commit_group import CommitGroup
from storage.keys import DeviceKey

_REASON = "a permission has ended on another node: messages that came with it are not stored"


class Link(Protocol):
    """A connection of a device. `is_allowed`: whether its token may still send for it."""

    @property
    def token(self) -> bytes: ...
    @property
    def is_allowed(self) -> Callable[[], bool]: ...
    @property
    def key(self) -> DeviceKey: ...


class PermissionFence:
    def __init__(self, links: Callable[[], Iterable[Link]]) -> None:
        """`links`: the connections to this node, with the ones that are about to be closed."""
        self._links = links

    def ends(self, holder: object, fact: Any) -> bool:
        """Whether a fact may end what the holder of a token is about to do."""
        if not isinstance(holder, Caller):
            return False
        match fact:
            case TokenRevoked():
                return holder.token == fact.hash
            case GrantsChanged():
                is_of_user = holder.user == fact.user or holder.kind is TokenKind.APPLICATION
                return is_of_user and holder.application == fact.application
            case ApplicationGrantsChanged():
                return holder.application == fact.application
            case SessionsEnded():
                return holder.is_console and holder.user == fact.user
            case SharesChanged():
                return holder.kind is not TokenKind.DEVICE
            case DeviceDeleted() | DeviceDisabled() | DeviceHandedOver():
                return holder.device == fact.device
        return False

    def refusal(self, group: CommitGroup, told: Sequence[tuple[Any, Any]]) -> str | None:
        """Why a commit is not stored after these facts."""
        if not group.row_count:
            return None
        for _kind, fact in told:
            is_held = any(self.ends(holder, fact) for holder in group.holders.values())
            if is_held and not isinstance(fact, SharesChanged):
                return _REASON
            devices = self._ended(fact)
            if isinstance(fact, SharesChanged) and is_held:
                devices.add(fact.device)
            if devices and _has_rows_of(group, devices):
                return _REASON
        return None

    def _ended(self, fact: Any) -> set[DeviceKey]:
        """The devices that had a connection with what has ended."""
        if isinstance(fact, TokenRevoked):
            return {link.key for link in self._links() if link.token == fact.hash}
        if isinstance(fact, GrantsChanged | ApplicationGrantsChanged | SharesChanged):
            return {link.key for link in self._links() if not link.is_allowed()}
        return set()


def _has_rows_of(group: CommitGroup, devices: set[DeviceKey]) -> bool:
    return (
        any(row.device in devices for row in group.messages)
        or any(row.device in devices for row in group.failed)
        or any(row.device in devices or row.source in devices for row in group.actions)
    )
