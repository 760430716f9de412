"""A conversation of a subscriber: what /live and /events share (reference 19.1)."""

import math
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, ExitStack
from typing import Generic, TypeVar

from broker.errors import Unauthorized
from broker.routing.connections import CloseReason
from protocols.websocket.connection import OpenWebSocket
from protocols.websocket.errors import TokenEnded
from protocols.websocket.frames import FrameForm, form_of
from protocols.websocket.handshake import HandshakeRequest
from protocols.websocket.rooms import WebSocketRooms
from protocols.websocket.wire import POLICY_VIOLATION

S = TypeVar("S")


class Watcher(ABC, Generic[S]):
    """One subscriber. `form` is that of the client's latest frame, and of the frames that the client gets.

    `selection` is what the parameters of the handshake selected at that time.
    """

    deadline = math.inf

    def __init__(
        self, rooms: WebSocketRooms, request: HandshakeRequest, selection: S, connection: OpenWebSocket
    ) -> None:
        self._rooms = rooms
        self._request = request
        self._selection = selection
        self._connection = connection
        self._subscription = ExitStack()
        self.form = FrameForm.JSON

    @abstractmethod
    def _subscribed(self) -> AbstractContextManager[None]:
        """The subscription for the current selection and form; it lasts as long as the block."""

    @abstractmethod
    async def _select(self) -> S:
        """Resolve the selection again. Raises DomainError when the caller has lost the permission."""

    async def talk(self) -> None:
        """Ignore the content of the client's frames; follow their form."""
        self._subscribe()
        while (payloads := await self._connection.receive()) is not None:
            self._connection.pace.spend(len(payloads))
            if payloads and (form := form_of(payloads[-1])) is not self.form:
                self.form = form
                self._subscribe()

    def _subscribe(self) -> None:
        """Replace the subscription without waiting in between, so that no message is missed or sent twice."""
        self._subscription.close()
        self._subscription.enter_context(self._subscribed())

    def _close(self, reason: CloseReason) -> None:
        self._connection.close(POLICY_VIOLATION, reason.value)

    async def check(self) -> None:
        """Resolve the selection again: tokens, devices and permissions may have gone or been added."""
        try:
            self._selection = await self._select()
        except Unauthorized as error:
            raise TokenEnded from error
        self._subscribe()

    def expired(self) -> None:
        """There is no deadline."""

    def pinged(self) -> None:
        """A subscriber is no device."""

    def heard_overhead(self, frames: int, pings: int) -> None:
        """Feeds are not rate limited (reference 19.2)."""

    async def finish(self) -> None:
        self.leave()

    def leave(self) -> None:
        self._subscription.close()
