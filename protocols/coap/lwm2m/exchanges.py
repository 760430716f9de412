"""Requests to devices: what is sent, over what, and how the answer comes back."""

from typing import Final, Protocol

import trio

from broker.device_management.sessions import SessionLostError
from protocols.coap.messages import CoapMessage

TOKEN_BYTES: Final = 4


class Exchange:
    """One request to a device that waits for its answer."""

    __slots__ = ("_answer", "_ended", "code", "options", "payload", "token")

    def __init__(self, code: int, token: bytes, options: bytes, payload: bytes) -> None:
        """A request that was not sent yet; `options` are encoded."""
        self.code = code
        self.token = token
        self.options = options
        self.payload = payload
        self._answer: CoapMessage | None = None
        self._ended = trio.Event()

    @property
    def has_ended(self) -> bool:
        return self._ended.is_set()

    @property
    def is_answered(self) -> bool:
        return self._answer is not None

    def answered(self, answer: CoapMessage) -> None:
        """The device answered."""
        if not self._ended.is_set():
            self._answer = answer
            self._ended.set()

    def lost(self) -> None:
        """The device rejected the request, did not answer it, or its connection has ended."""
        self._ended.set()

    async def answer(self) -> CoapMessage:
        """Wait for the answer. Raises SessionLostError."""
        await self._ended.wait()
        if self._answer is None:
            raise SessionLostError
        return self._answer


class Lwm2mLink(Protocol):
    """The connection over which a registered device is reached at present."""

    @property
    def is_closed(self) -> bool: ...

    @property
    def is_stream(self) -> bool:
        """TCP and TLS: messages come once and in their order."""

    async def ask(self, exchange: Exchange) -> CoapMessage:
        """Send a request and wait for its answer. Raises SessionLostError."""

    def close(self) -> None:
        """End the connection. A second call does nothing."""

    def unregistered(self) -> None:
        """The registration over this connection has ended."""
