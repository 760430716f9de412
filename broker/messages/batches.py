"""Batches: messages of one call, each with a time of its own (reference 9.8).

All of a batch that are accepted are rows of one commit, so a sender whose answer was lost knows that all of them are
stored, or none. All that takes time is done before that, in turns.
"""

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Final

import msgspec
import trio

from broker.device_types.dropped import DroppedField
from broker.devices.registry import Device
from broker.errors import DomainError
from broker.messages.ingest import Ingest, Normalized
from broker.trace.origin import on_whose_account
from storage.fair_places import FairPlaces
from storage.keys import Ticket

_TURN_SECONDS: Final = 0.001  # then the other tasks of the daemon have their turn


class BatchMessage(msgspec.Struct):
    """A message on its way: `payload` and `ts` are those of `Ingest.submit`, and `dropped` is filled by it."""

    device: Device
    payload: bytes
    ts: object
    dropped: list[DroppedField] = msgspec.field(default_factory=list)
    ahead: Normalized | None = None


class Turn:
    """The time of a task that has much to do without waiting."""

    def __init__(self) -> None:
        self._ends = perf_counter() + _TURN_SECONDS

    async def pause(self) -> None:
        """Let the other tasks go on, if this turn has been long."""
        if perf_counter() >= self._ends:
            await trio.lowlevel.checkpoint()
            self._ends = perf_counter() + _TURN_SECONDS


class Batches:
    """Submits batches: one at a time, fairly by user, so that many of them do not fill each turn of the loop."""

    def __init__(self, ingest: Ingest) -> None:
        self._ingest = ingest
        self._places = FairPlaces(1)

    async def submit(
        self, messages: Sequence[BatchMessage], refused: Callable[[Device], DomainError | None]
    ) -> Sequence[Ticket | DomainError]:
        """Accept messages in their order; return a ticket for each one, or why it is refused.

        Nothing is awaited after the first submission, so the tickets are of `Ingest.group`.

        Args:
            messages: of any devices.
            refused: says now why the caller may not write to a device; time may have passed since this was asked first.
        """
        turn = Turn()
        async with self._places.of(on_whose_account()):
            for message in messages:
                message.ahead = self._ingest.normalized(message.device, message.payload)
                await turn.pause()
            while not self._ingest.has_room:
                await self._ingest.wait_room()
            return [self._submit(message, refused(message.device)) for message in messages]

    def _submit(self, message: BatchMessage, refusal: DomainError | None) -> Ticket | DomainError:
        if refusal is not None:
            return refusal
        try:
            return self._ingest.submit(message.device, message.payload, message.ts, message.dropped, message.ahead)
        except DomainError as error:
            return error
