"""The port to payment processors, and the manual processor (reference 13).

Other processors have a checkout to which the browser is sent, and report the outcome by a notification.
"""

from collections.abc import Mapping
from typing import Final, Literal, Protocol

import msgspec
import structlog

PaymentOutcome = Literal["accepted", "declined", "failed"]
CheckoutState = Literal["closed", "paid", "on_its_way"]
MANUAL: Final = "manual"

_log = structlog.get_logger(__name__)


class PaymentFailed(Exception):
    """The processor cannot take a payment now. The text is for the log."""


class NotificationRefused(Exception):
    """A notification is not from the processor. The text is for the log."""


class PaymentOrder(msgspec.Struct, frozen=True):
    """A payment to collect. `cost` is a decimal number; `returns_to` is the address to which the browser returns."""

    reference: str
    description: str
    cost: str
    action: str  # upgrade | select | edit
    returns_to: str


class Checkout(msgspec.Struct, frozen=True):
    """The address at which the browser pays, and the processor's id of the checkout."""

    url: str
    external_id: str


class Decided(msgspec.Struct, frozen=True):
    """The outcome of a payment, as a processor reports it."""

    reference: str
    outcome: PaymentOutcome


class Processor(Protocol):
    @property
    def name(self) -> str: ...

    async def begin(self, order: PaymentOrder) -> Checkout | None:
        """Begin to collect a payment. None: it has no checkout, and the operator decides. Raises PaymentFailed."""

    async def close(self, external_id: str) -> CheckoutState:
        """Close a checkout, so that it cannot be paid any more, unless it is paid. May be repeated.

        `on_its_way`: it was paid by a method that takes days and may still fail.

        Raises PaymentFailed: the checkout may still be open.
        """

    def read(self, body: bytes, headers: Mapping[str, str]) -> Decided | None:
        """The outcome in a notification; None when it is about something else. Header names are in lower case.

        Raises NotificationRefused.
        """


class ManualProcessor:
    """Users pay outside the product, and the operator confirms the payment."""

    name = MANUAL

    async def begin(self, order: PaymentOrder) -> Checkout | None:
        _log.info("payment_waits_for_operator", reference=order.reference, cost=order.cost)
        return None

    async def close(self, external_id: str) -> CheckoutState:  # noqa: ARG002 - there are no checkouts
        return "closed"

    def read(self, body: bytes, headers: Mapping[str, str]) -> Decided | None:  # noqa: ARG002 - notifications are refused
        raise NotificationRefused("payments are confirmed by the operator")
