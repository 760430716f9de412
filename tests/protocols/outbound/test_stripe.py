"""Stripe as the processor: requests, signatures of notifications, and outcomes."""

import time
from decimal import Decimal

import pytest
import trio

from broker.monetization.port import Decided, NotificationRefused, PaymentFailed, PaymentOrder
from config.settings import PaymentSettings
from protocols.outbound.http import OutboundHttp
from protocols.outbound.stripe import TOLERANCE_SECONDS, Stripe
from protocols.outbound.tls import client_context
from tests.protocols.outbound.stripe_stand_in import KEY, WEBHOOK_SECRET, StripeStandIn, event, signed
from tests.rows import each_row

NOW = 1_760_000_000.0
ORDER = PaymentOrder(
    "ab" * 16, "Plus: Kitchen light", "2.99", "upgrade", "https://us.example/accounts/pricing/upgrade?payment=c0"
)


@pytest.fixture
async def stand_in(nursery: trio.Nursery) -> StripeStandIn:
    stand_in = StripeStandIn()
    await nursery.start(stand_in.run)
    return stand_in


def stripe_at(url: str, *, key: str = KEY, now: float = NOW) -> Stripe:
    settings = PaymentSettings(
        processor="stripe", stripe_key=key, stripe_webhook_secret=WEBHOOK_SECRET, stripe_url=url, currency="eur"
    )
    return Stripe(OutboundHttp(client_context(""), allow_private=True), settings, now=lambda: now)


async def test_a_checkout_session_is_asked_for_in_the_form_that_stripe_wants(stand_in: StripeStandIn) -> None:
    checkout = await stripe_at(stand_in.url).begin(ORDER)
    assert (checkout.url, checkout.external_id) == (
        f"https://checkout.example/pay/{ORDER.reference}",
        f"cs_test_{ORDER.reference}",
    )
    session = stand_in.sessions[ORDER.reference].form
    assert session["line_items[0][price_data][unit_amount]"] == "299"
    assert session["line_items[0][price_data][currency]"] == "eur"
    assert session["success_url"] == ORDER.returns_to
    assert session["cancel_url"] == ORDER.returns_to + "&cancelled=1"
    assert session["payment_intent_data[metadata][reference]"] == ORDER.reference


@pytest.mark.parametrize("cost", ["0.01", "1", "4.99", "19.9", "1234567.89", "1.10", "8.70"])
async def test_prices_are_exact(stand_in: StripeStandIn, cost: str) -> None:
    await stripe_at(stand_in.url).begin(PaymentOrder(ORDER.reference, "Plus", cost, "upgrade", ORDER.returns_to))
    asked = stand_in.sessions[ORDER.reference].form["line_items[0][price_data][unit_amount]"]
    assert Decimal(asked) == Decimal(cost) * 100


async def test_a_wrong_key_is_a_failed_payment_and_is_not_repeated_in_the_reason(stand_in: StripeStandIn) -> None:
    with pytest.raises(PaymentFailed) as failed:
        await stripe_at(stand_in.url, key="sk_secret").begin(ORDER)
    assert "status 401" in str(failed.value)
    assert "sk_secret" not in str(failed.value)


@each_row(
    "answer",
    [
        (500, b"{}"),
        (302, b""),
        (200, b"not json"),
        (200, b"[]"),
        (200, b"{}"),
        (200, b'{"id":"cs_1"}'),
        (200, b'{"id":"cs_1","url":null}'),
        (200, b'{"id":"cs_1","url":"javascript:alert(1)"}'),
        (200, b'{"id":"cs_1","url":"http://checkout.example/"}'),
        (200, b" " * 300_000),
    ],
)
async def test_an_answer_that_cannot_be_used_is_a_failed_payment(
    stand_in: StripeStandIn, answer: tuple[int, bytes]
) -> None:
    stand_in.answer = answer
    with pytest.raises(PaymentFailed):
        await stripe_at(stand_in.url).begin(ORDER)


async def test_no_server_is_a_failed_payment() -> None:
    with pytest.raises(PaymentFailed):
        await stripe_at("http://127.0.0.1:1").begin(ORDER)


async def test_a_session_that_is_closed_cannot_be_paid_and_can_be_closed_again(stand_in: StripeStandIn) -> None:
    stripe = stripe_at(stand_in.url)
    checkout = await stripe.begin(ORDER)
    for _ in range(2):
        assert await stripe.close(checkout.external_id) == "closed"
    assert stand_in.open_sessions() == []


@pytest.mark.parametrize(("payment_status", "fate"), [("paid", "paid"), ("unpaid", "on_its_way")])
async def test_closing_a_paid_session_reports_the_payment(
    stand_in: StripeStandIn, payment_status: str, fate: str
) -> None:
    stripe = stripe_at(stand_in.url)
    checkout = await stripe.begin(ORDER)
    stand_in.sessions[ORDER.reference].pay(payment_status)
    assert await stripe.close(checkout.external_id) == fate


async def test_a_session_of_another_account_counts_as_closed(stand_in: StripeStandIn) -> None:
    assert await stripe_at(stand_in.url).close("cs_live_of_another_account") == "closed"


NOT_KNOWN = [
    (500, b"{}"),
    (404, b"not stripe"),
    (200, b"{}"),
    (200, b'{"id":"cs_1"}'),
    (200, b'{"id":"","status":"open"}'),
]


@each_row("answer", NOT_KNOWN)
async def test_closing_a_session_fails_without_an_answer(stand_in: StripeStandIn, answer: tuple[int, bytes]) -> None:
    stand_in.answer = answer
    with pytest.raises(PaymentFailed):
        await stripe_at(stand_in.url).close("cs_1")


NOTIFICATIONS = [
    (event("checkout.session.completed", "r1", payment_status="paid"), Decided("r1", "accepted")),
    (event("checkout.session.completed", "r1", payment_status="unpaid"), None),  # the money is on its way
    (event("checkout.session.async_payment_succeeded", "r1"), Decided("r1", "accepted")),
    (event("checkout.session.async_payment_failed", "r1"), Decided("r1", "failed")),
    (event("checkout.session.expired", "r1"), Decided("r1", "declined")),
    (event("customer.created", "r1"), None),
    (b'{"type":"checkout.session.expired","data":{"object":{}}}', None),
    (b'{"type":"checkout.session.expired","data":{"object":7}}', None),
    (b'{"type":"checkout.session.expired"}', None),
]


@each_row(("body", "decided"), NOTIFICATIONS)
def test_a_signed_notification_has_the_outcome_of_a_payment(body: bytes, decided: Decided | None) -> None:
    assert stripe_at("").read(body, signed(body, NOW)) == decided


BODY = event("checkout.session.expired", "r1")
UNSIGNED = [
    {},
    {"stripe-signature": ""},
    {"stripe-signature": "t=,v1="},
    {"stripe-signature": "nonsense"},
    {"stripe-signature": f"t={int(NOW)}"},
    {"stripe-signature": f"t={int(NOW)},v1={'0' * 64}"},
    {"stripe-signature": f"t={int(NOW)},v1=é"},
    {"stripe-signature": f"t={'9' * 5000},v1={'0' * 64}"},
    signed(BODY, NOW, secret="whsec_of_somebody_else"),
    signed(BODY + b" ", NOW),
    signed(BODY, NOW - TOLERANCE_SECONDS - 1),
    signed(BODY, NOW + TOLERANCE_SECONDS + 1),
]


@each_row("headers", UNSIGNED)
def test_notifications_without_a_valid_signature_are_refused(headers: dict[str, str]) -> None:
    with pytest.raises(NotificationRefused):
        stripe_at("").read(BODY, headers)


def test_signed_nonsense_is_refused() -> None:
    with pytest.raises(NotificationRefused):
        stripe_at("").read(b"[", signed(b"[", NOW))


def test_the_default_clock_is_the_systems() -> None:
    body = event("checkout.session.expired", "r1")
    settings = PaymentSettings(stripe_webhook_secret=WEBHOOK_SECRET)
    stripe = Stripe(OutboundHttp(client_context(""), allow_private=True), settings)
    assert stripe.read(body, signed(body, time.time())) == Decided("r1", "declined")
