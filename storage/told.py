"""Changes that a transaction tells, for everybody who keeps something of the store in memory: the kind of a change, and
a key.

A work of `Database.write` tells; the writer reads what hearers need at the end of the group, in its transaction; the
loop passes it on in the order of the commits, before anybody who waits for a commit goes on.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from storage.sql import StoreError

_K_contra = TypeVar("_K_contra", contravariant=True)


class NotReadError(StoreError):
    """A change that a work told cannot be read. The work is undone."""


class Tellable(Protocol[_K_contra]):
    """A kind of change."""

    @property
    def is_state(self) -> bool:
        """Told twice with equal keys in one commit, it says the same: it is read and passed on once."""

    @property
    def read(self) -> Callable[[Any, _K_contra], object] | None:
        """Reads what hearers need, in the transaction of the change; None: the key says all."""


#: A kind, the key, and what `read` of the kind returned, or None.
Told = tuple[Tellable[Any], Any, Any]


def read_told(tx: Any, told: Sequence[tuple[Tellable[Any], Any]]) -> list[Told]:
    """Raises StoreError."""
    found: list[Told] = []
    seen: set[tuple[Tellable[Any], Any]] = set()
    is_single = len(told) == 1
    for one in told:
        kind, key = one
        if kind.is_state and not is_single:
            if one in seen:
                continue
            seen.add(one)
        read = kind.read
        try:
            found.append((kind, key, None if read is None else read(tx, key)))
        except StoreError:
            raise
        except Exception as error:
            raise NotReadError(f"{kind} of {key!r} cannot be read: {error!r}") from error
    return found
