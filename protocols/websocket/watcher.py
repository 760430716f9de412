"""A conversation of a subscriber: what /live and /events share (reference 19.1)."""

from abc import abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Generic, TypeVar

import trio

from broker.errors import Unauthorized
from broker.routing.connections import CloseReason
from protocols.rooms import WebSocketRooms
from protocols.streams.hub import Hub
from protocols.websocket.connection import WebSocket
from protocols.websocket.errors import TokenEnded
from protocols.websocket.frames import FrameForm, form_of
from protocols.websocket.handshake import HandshakeRequest
from protocols.websocket.wire import POLICY_VIOLATION

S = TypeVar("S")


class Watcher(WebSocket, Generic[S]):
    """One subscriber. `form` is that of the client's latest frame, and of the frames that the client gets.

    `selection` is what the parameters of the handshake selected at that time.
    """

    __slots__ = ("_request", "_selection", "_subscription", "form")

    def __init__(
        self, rooms: WebSocketRooms, request: HandshakeRequest, selection: S, stream: trio.abc.Stream, hub: Hub
    ) -> None:
        super().__init__(rooms, stream, hub)
        self._request = request
        self._selection = selection
        self._subscription = ExitStack()
        self.form = FrameForm.JSON

    @abstractmethod
    def _subscribed(self) -> AbstractContextManager[None]:
        """The subscription for the current selection and form; it lasts as long as the block."""

    @abstractmethod
    async def _select(self) -> S:
        """Resolve the selection again. Raises DomainError when the caller has lost the permission."""

    def begin(self) -> None:
        self._subscribe()

    def take_messages(self, messages: Sequence[str | bytes]) -> None:
        """Ignore the content of the client's frames; follow their form."""
        self.pace.spend(len(messages))
        if (form := form_of(messages[-1])) is not self.form:
            self.form = form
            self._subscribe()

    def _subscribe(self) -> None:
        """Replace the subscription without waiting in between, so that no message is missed or sent twice."""
        self._subscription.close()
        self._subscription.enter_context(self._subscribed())

    def _end_link(self, reason: CloseReason) -> None:
        self.close(POLICY_VIOLATION, reason.value)

    async def check(self) -> None:
        """Resolve the selection again: tokens, devices and permissions may have gone or been added."""
        try:
            self._selection = await self._select()
        except Unauthorized as error:
            raise TokenEnded from error
        self._subscribe()

    def leave(self) -> None:
        self._subscription.close()
