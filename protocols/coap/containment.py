"""The one place where CoAP catches exceptions that no code expects, which are bugs of the daemon."""

from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Self

import structlog

from broker.ids import new_id
from config.settings import Address

_log = structlog.get_logger(__name__)


class contain:  # noqa: N801 - named as contextlib's `suppress`
    """A block whose exceptions end one exchange, session, observation or handshake and touch nothing else.

    An exception is logged once, with the peer, and goes no further than the block. A cancellation passes. Each message
    takes three such blocks, so this is no `@contextmanager`, which costs several times as much.
    """

    __slots__ = ("_details", "_end", "_event", "_peer", "error_id")

    def __init__(
        self,
        event: str,
        peer: Hashable,
        end: Callable[[Hashable], None] | None = None,
        details: Mapping[str, object] | None = None,
    ) -> None:
        """A block that serves one peer.

        Args:
            event: the event in the log.
            peer: the address of the peer, or the key of its session.
            end: called with `peer` after an exception, to end what the block was part of.
            details: further fields of the log entry.
        """
        self._event = event
        self._peer = peer
        self._end = end
        self._details = details
        #: The id of the logged exception; None when the block raised none.
        self.error_id: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):  # None, or a cancellation
            return False
        self.error_id = new_id()
        _log.error(self._event, error_id=self.error_id, peer=_text(self._peer), exc_info=error, **(self._details or {}))
        if self._end is not None:
            with suppress(Exception):  # the bug that was just logged may also break the end
                self._end(self._peer)
        return True


def _text(peer: Hashable) -> str:
    return str(Address(*peer[:2])) if isinstance(peer, tuple) and len(peer) > 1 else str(peer)
