"""The other nodes that write into the same store, as the database sees them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from storage.facts import FactRecord
from storage.told import Told

if TYPE_CHECKING:
    from storage.commit_group import CommitGroup


class PackedFact(msgspec.Struct, frozen=True):
    """A change as the others get it; `value` and `content` are MessagePack."""

    is_fencing: bool
    kind: str
    value: bytes
    content: bytes


class HeardOf(msgspec.Struct, frozen=True):
    """The commits of others, as far as the database has told of them just now. `changes`: facts or Actions, and perhaps
    messages; `messages`: these alone."""

    changes: bool = False
    messages: bool = False


class Peers(Protocol):
    """Takes what the others write, and tells them. All but `packed` are called on the loop."""

    @property
    def instance(self) -> str:
        """The name of this process."""

    def begin(self, number: int) -> None:
        """Facts up to this one are in what the daemon reads of the store."""

    def packed(self, told: Told) -> PackedFact | None:
        """In the writer's thread. None: the others need not hear of it."""

    def heard(self, facts: Sequence[FactRecord]) -> None:
        """Others have told these, in this order. One that was heard already is left out."""

    def committed(self, told: Sequence[Told | FactRecord], upto: int) -> None:
        """A commit of this node has told these; what others had told before it is between them. `upto` is the number
        of the last fact of all."""

    def refusal(self, group: "CommitGroup", facts: Sequence[FactRecord]) -> str | None:
        """Why a group is not stored after these facts; None: it is."""

    async def publish(self, group: "CommitGroup") -> None:
        """Publish the rows of the others that come before those of the group, which is committed. Never cancelled
        within; when the rows cannot be read, this node ends."""
