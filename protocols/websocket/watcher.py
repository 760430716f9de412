"""A connection that only listens: what /live and /events have in common (reference 19.1)."""

import math
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, ExitStack
from typing import Generic, TypeVar

from broker.errors import Unauthorized
from broker.routing.connections import CloseReason
from broker.services import Services
from protocols.websocket.connection import Connection
from protocols.websocket.errors import TokenEnded
from protocols.websocket.frames import Form, form_of
from protocols.websocket.handshake import Call
from protocols.websocket.wire import POLICY_VIOLATION

S = TypeVar("S")


class Watcher(ABC, Generic[S]):
    """One subscriber, from its handshake to its end. `form` is how the client writes, and so how it is written to.

    `selection` is what the parameters of the handshake stood for when it was made.
    """

    deadline = math.inf

    def __init__(self, services: Services, call: Call, selection: S, connection: Connection) -> None:
        self._services = services
        self._call = call
        self._selection = selection
        self._connection = connection
        self._subscription = ExitStack()
        self.form = Form.JSON

    @abstractmethod
    def _subscribed(self) -> AbstractContextManager[None]:
        """The subscription as things are now; it lasts as long as the block."""

    @abstractmethod
    async def _select(self) -> S:
        """Work out again what is watched. Raises DomainError when the caller may not any more."""

    async def talk(self) -> None:
        """What the client says does not matter, only how it writes."""
        self._subscribe()
        while (payloads := await self._connection.receive()) is not None:
            if payloads and (form := form_of(payloads[-1])) is not self.form:
                self.form = form
                self._subscribe()

    def _subscribe(self) -> None:
        """Nothing happens between leaving and entering, so nothing is missed or seen twice."""
        self._subscription.close()
        self._subscription.enter_context(self._subscribed())

    def _close(self, reason: CloseReason) -> None:
        self._connection.close(POLICY_VIOLATION, reason.value)

    async def check(self) -> None:
        """Token, devices and permissions may have gone; and more may have been granted."""
        try:
            self._selection = await self._select()
        except Unauthorized as error:
            raise TokenEnded from error
        self._subscribe()

    def expired(self) -> None:
        """There is no deadline."""

    def pinged(self) -> None:
        """A subscriber is no device."""

    async def finish(self) -> None:
        self.leave()

    def leave(self) -> None:
        self._subscription.close()
