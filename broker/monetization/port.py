"""What takes the money: the port, and the processor that is always there (reference 13).

A processor that takes money elsewhere sends the browser there, and tells us what became of it by a notification.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, Protocol

import structlog

Outcome = Literal["accepted", "declined", "failed"]
Fate = Literal["closed", "paid", "on_its_way"]
MANUAL: Final = "manual"

_log = structlog.get_logger(__name__)


class PaymentFailed(Exception):
    """The processor cannot take a payment now. The text is for the log."""


class NotificationRefused(Exception):
    """What came is not from the processor. The text is for the log."""


@dataclass(frozen=True, slots=True)
class Order:
    """What a processor is to collect. `cost` is a decimal number; `returns_to` is where the browser comes back to."""

    reference: str
    description: str
    cost: str
    action: str  # upgrade | select | edit
    returns_to: str


@dataclass(frozen=True, slots=True)
class Checkout:
    """Where the browser goes to pay, and what the processor calls it."""

    url: str
    external_id: str


@dataclass(frozen=True, slots=True)
class Decided:
    """A processor's word on a payment of ours."""

    reference: str
    outcome: Outcome


class Processor(Protocol):
    @property
    def name(self) -> str: ...

    async def begin(self, order: Order) -> Checkout | None:
        """Begin to collect. None: people settle it, and the operator says how. Raises PaymentFailed."""

    async def close(self, external_id: str) -> Fate:
        """See to it that nobody pays a checkout any more, or learn that somebody has. Doing so again does no harm.

        `on_its_way`: somebody has paid in a way that takes days, so it may still fail. Raises PaymentFailed: it may be
        open.
        """

    def read(self, body: bytes, headers: Mapping[str, str]) -> Decided | None:
        """What a notification says; None when it is about nothing that concerns us. Header names are in lower case.

        Raises NotificationRefused.
        """


class ManualProcessor:
    """The operator confirms."""

    name = MANUAL

    async def begin(self, order: Order) -> Checkout | None:
        _log.info("payment_waits_for_operator", reference=order.reference, cost=order.cost)
        return None

    async def close(self, external_id: str) -> Fate:  # noqa: ARG002 - it has no checkouts
        return "closed"

    def read(self, body: bytes, headers: Mapping[str, str]) -> Decided | None:  # noqa: ARG002 - whatever it says
        raise NotificationRefused("payments are confirmed by the operator")
