"""Stripe Checkout as the processor of payments: a session for each payment, and its signed notifications.

Stripe collects the money on its own pages, so the daemon never gets a card number. The notification decides, not the
browser's return. Its signature is checked as Stripe documents it: HMAC-SHA256 over time and body, at most five minutes
old.

An open session can be paid for a day. `close` expires it; Stripe refuses that for a session that is complete or has
expired (https://docs.stripe.com/api/checkout/sessions/expire), and then the session's status says which.
"""

import hmac
import ssl
import time
from collections.abc import Callable, Mapping
from decimal import Decimal
from hashlib import sha256
from typing import Any, Final
from urllib.parse import quote, urlencode

import msgspec

from broker.monetization.port import (
    Checkout,
    CheckoutState,
    Decided,
    ManualProcessor,
    NotificationRefused,
    PaymentFailed,
    PaymentOrder,
    PaymentOutcome,
    Processor,
)
from broker.nesting import check_nesting
from config.settings import PaymentSettings, Settings
from protocols.outbound.http import HttpAnswer, HttpFailedError, OutboundHttp

TOLERANCE_SECONDS: Final = 300
_SECONDS: Final = 20.0
_MOST_BYTES: Final = 256 * 1024
_OUTCOMES: Final[Mapping[str, PaymentOutcome]] = {
    "checkout.session.async_payment_succeeded": "accepted",
    "checkout.session.async_payment_failed": "failed",
    "checkout.session.expired": "declined",
}


class _Session(msgspec.Struct):
    id: str
    url: str | None = None
    status: str | None = None  # open | complete | expired
    payment_status: str = ""  # paid | unpaid | no_payment_required


class _Event(msgspec.Struct):
    type: str
    data: dict[str, Any] = {}


class Stripe:
    name = "stripe"

    def __init__(self, http: OutboundHttp, settings: PaymentSettings, *, now: Callable[[], float] = time.time) -> None:
        self._http = http
        self._settings = settings
        self._now = now

    async def begin(self, order: PaymentOrder) -> Checkout:
        """Open a Checkout session. A repeated request for the same payment returns the same session."""
        form = {
            "mode": "payment",
            "client_reference_id": order.reference,
            # Makes the payment searchable in Stripe's dashboard.
            "payment_intent_data[metadata][reference]": order.reference,
            "line_items[0][quantity]": "1",
            "line_items[0][price_data][currency]": self._settings.currency,
            "line_items[0][price_data][unit_amount]": str(int(Decimal(order.cost) * 100)),
            "line_items[0][price_data][product_data][name]": order.description,
            "success_url": order.returns_to,
            "cancel_url": f"{order.returns_to}&cancelled=1",
        }
        headers = {"Content-Type": "application/x-www-form-urlencoded", "Idempotency-Key": order.reference}
        session = _session_in(await self._ask("POST", "", headers=headers, body=urlencode(form).encode()))
        if session.url is None or not session.url.startswith(("https://", "http://127.0.0.1:")):
            raise PaymentFailed("a session without an address")
        return Checkout(session.url, session.id)

    async def close(self, external_id: str) -> CheckoutState:
        path = f"/{quote(external_id, safe='')}"
        answer = await self._ask("POST", f"{path}/expire")
        if answer.status == 404 and b"resource_missing" in answer.body:
            return "closed"  # the session belongs to another account, and expires within a day
        if answer.status != 200:
            answer = await self._ask("GET", path)
        session = _session_in(answer)
        if session.status == "expired":
            return "closed"
        if session.status == "complete":
            return "paid" if session.payment_status == "paid" else "on_its_way"
        raise PaymentFailed(f"a session that stays {session.status}")

    async def _ask(
        self, method: str, path: str, *, headers: Mapping[str, str] | None = None, body: bytes = b""
    ) -> HttpAnswer:
        """Send a request about sessions. Raises PaymentFailed when there is no answer."""
        try:
            return await self._http.send(
                method,
                f"{self._settings.stripe_url.rstrip('/')}/v1/checkout/sessions{path}",
                headers={"Authorization": f"Bearer {self._settings.stripe_key}", **(headers or {})},
                body=body,
                seconds=_SECONDS,
                most_bytes=_MOST_BYTES,
            )
        except HttpFailedError as error:
            raise PaymentFailed(str(error)) from error

    def read(self, body: bytes, headers: Mapping[str, str]) -> Decided | None:
        self._check_signature(body, headers.get("stripe-signature", ""))
        try:
            check_nesting(body)
            event = msgspec.json.decode(body, type=_Event)
        except msgspec.DecodeError as error:
            raise NotificationRefused("a body that cannot be read") from error
        session = event.data.get("object")
        if not isinstance(session, dict):
            return None
        outcome = _OUTCOMES.get(event.type)
        if event.type == "checkout.session.completed" and session.get("payment_status") == "paid":
            outcome = "accepted"
        reference = session.get("client_reference_id")
        return Decided(reference, outcome) if outcome is not None and isinstance(reference, str) else None

    def _check_signature(self, body: bytes, header: str) -> None:
        parts = [part.partition("=") for part in header.split(",")]
        at = next((value for name, _, value in parts if name.strip() == "t"), "")
        if not at.isdecimal() or abs(self._now() - int(at[:15])) > TOLERANCE_SECONDS:
            raise NotificationRefused("no signature, or one of another time")
        secret = self._settings.stripe_webhook_secret.encode()
        wanted = hmac.new(secret, at.encode() + b"." + body, sha256).hexdigest()
        given = [value for name, _, value in parts if name.strip() == "v1"]
        if not any(hmac.compare_digest(wanted.encode(), one.encode()) for one in given):
            raise NotificationRefused("a wrong signature")


def _session_in(answer: HttpAnswer) -> _Session:
    """Raises PaymentFailed for an answer without a session."""
    if answer.status != 200:
        raise PaymentFailed(f"status {answer.status}")
    try:
        check_nesting(answer.body)
        return msgspec.json.decode(answer.body, type=_Session)
    except msgspec.DecodeError as error:
        raise PaymentFailed("an answer that cannot be read") from error


def payment_processor(settings: Settings, tls: ssl.SSLContext) -> Processor:
    """The processor that the settings ask for."""
    if settings.payments.processor == "manual":
        return ManualProcessor()
    # The operator has chosen the address, so it may be private.
    return Stripe(OutboundHttp(tls, allow_private=True), settings.payments)
