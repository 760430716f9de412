"""News: a capability that keeps something of the store in memory hears of each change that was committed.

A work of `Database.write` calls `tx.tell(kind, key)` or `publish(tx, fact)`. The writer reads what hearers need at the
end of the group. The listeners of the kind are called on the loop in the order of the commits, before anybody who waits
for the commit goes on, and also when the task that asked for the work was cancelled. A work that is undone tells
nothing. `broker/cluster/kinds.py` has the kinds.

Keys and contents are records of the store without closures and live objects, which MessagePack can hold: another node
can hear of the same change.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, get_type_hints

import structlog

from broker.facts import Fact, Router
from storage.database import Database
from storage.told import Told
from storage.transaction import Transaction

K = TypeVar("K")
C = TypeVar("C")
_F = TypeVar("_F", bound=Fact)
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class NewsKind(Generic[K, C]):
    """A kind of change.

    `is_fencing`: it ends something, such as a permission, so a node must have heard it before it commits anything more.
    `is_state`: hearers need the present state; told twice with equal keys in one commit, it is heard once, where it was
    told first. Otherwise each is heard. `is_fact`: the key is a fact, which the router's subscribers hear.
    `is_own`: it is about this process alone, and other nodes do not hear of it.
    """

    name: str
    key_type: Any
    content_type: Any = None
    read: Callable[[Transaction, K], C] | None = field(default=None, repr=False)
    is_fencing: bool = False
    is_state: bool = False
    is_fact: bool = False
    is_own: bool = False


def state(
    name: str, read: Callable[[Transaction, K], C], *, is_fencing: bool = False, is_own: bool = False
) -> NewsKind[K, C]:
    """A kind whose hearers get what `read` finds in the transaction of the change. Its annotations are the types."""
    hints = get_type_hints(read)
    content = hints.pop("return")
    _tx, key = hints.values()
    return NewsKind(name, key, content, read, is_fencing=is_fencing, is_state=True, is_own=is_own)


def event(name: str, key: type[K], *, is_fencing: bool = False, is_own: bool = False) -> NewsKind[K, None]:
    """A kind whose key says all."""
    return NewsKind(name, key, is_fencing=is_fencing, is_own=is_own)


def of_fact(fact: type[_F], *, is_fencing: bool = False, is_state: bool = False) -> NewsKind[_F, None]:
    """The fact is the key."""
    return NewsKind(fact.__name__, fact, is_fencing=is_fencing, is_state=is_state, is_fact=True)


class News:
    """Calls the listeners of each kind that was told."""

    def __init__(self, database: Database, router: Router) -> None:
        self._router = router
        self._listeners: dict[NewsKind[Any, Any], list[Callable[[Any, Any], None]]] = {}
        self._elsewhere: dict[NewsKind[Any, Any], list[Callable[[Any, Any], None]]] = {}
        database.on_told(self.heard)

    def listen(self, kind: NewsKind[K, C], listener: Callable[[K, C], None]) -> None:
        """Call `listener` with the key and the content. The listeners of one kind are called in the order in which they
        were registered."""
        self._listeners.setdefault(kind, []).append(listener)

    def listen_elsewhere(self, kind: NewsKind[K, C], listener: Callable[[K, C], None]) -> None:
        """Call `listener` with what another node has told."""
        self._elsewhere.setdefault(kind, []).append(listener)

    def listeners(self, kind: NewsKind[Any, Any]) -> Sequence[Callable[[Any, Any], None]]:
        return tuple(self._listeners.get(kind, ()))

    def heard(self, told: Sequence[Told]) -> None:
        """A commit of this node has told these."""
        for kind, key, content in told:
            if kind.is_fact:  # type: ignore[attr-defined]
                self._router.publish(key)
            self._call(self._listeners, (kind, key, content))

    def heard_elsewhere(self, told: Told) -> None:
        """Another node has told this."""
        self.heard((told,))
        self._call(self._elsewhere, told)

    def _call(self, listeners: dict[NewsKind[Any, Any], list[Callable[[Any, Any], None]]], told: Told) -> None:
        kind, key, content = told
        for listener in listeners.get(kind, ()):  # type: ignore[call-overload]
            try:
                listener(key, content)
            except Exception:  # noqa: BLE001 - a failing listener must not keep the others from hearing
                _log.exception("news_listener_failed", kind=kind, listener=repr(listener))
