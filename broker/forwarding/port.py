"""The ways out to upstreams. `protocols/outbound/forwarding.py` implements them."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import msgspec

from config.settings import Forward


class UpstreamError(Exception):
    """The upstream cannot be reached, or does not take what it is sent. The text is a sentence without secrets.

    `seconds`: it asks not to be tried again before.
    """

    def __init__(self, text: str, *, seconds: float = 0.0) -> None:
        super().__init__(text)
        self.seconds = seconds


class UpstreamAnswer(msgspec.Struct, frozen=True):
    """Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class BrokerMessage(msgspec.Struct, frozen=True):
    """A message for a broker; `properties` are user properties of MQTT 5."""

    topic: str
    payload: bytes
    properties: tuple[tuple[str, str], ...] = ()


class Broker(Protocol):
    async def publish(self, messages: Sequence[BrokerMessage]) -> None:
        """Publish with QoS 1 in this order; return when the broker has acknowledged all of them.

        Raises UpstreamError: not all of them are acknowledged.
        """


#: Takes topic and payload of a command, which is acknowledged when it returns. Raises UpstreamError.
Command = Callable[[str, bytes], Awaitable[None]]


class Upstreams(Protocol):
    async def post(self, entry: Forward, path: str, body: bytes, *, seconds: float) -> UpstreamAnswer:
        """POST JSON with the token of the entry. Raises UpstreamError: there is no answer."""

    def broker(
        self, entry: Forward, client_id: str, commands: str, command: Command
    ) -> AbstractAsyncContextManager[Broker]:
        """A connection to the entry's broker. `commands` is a topic filter, or empty. The block is cancelled when the
        connection ends. Raises UpstreamError, also in place of the cancellation."""

    async def close_idle(self) -> None:
        """Close connections that are not used any more."""
