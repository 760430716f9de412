"""An upgrade is paid at most once, and no payment is lost: payments with Stripe's stand-in as the processor."""

import time
from collections.abc import AsyncIterator

import httpx
import pytest
import trio

from broker.errors import Conflict
from broker.monetization.payments import ProcessorUnavailable
from broker.services import Services
from config.settings import Address, PaymentSettings
from protocols.control.monetization import MONETIZATION_COMMANDS
from protocols.outbound.http import OutboundHttp
from protocols.outbound.stripe import Stripe
from protocols.outbound.tls import client_context
from tests.builders import ServicesOpener
from tests.factories import ADA_TOKEN, KITCHEN, LIGHT_TYPE, World
from tests.protocols.http.direct_client import DirectClient
from tests.protocols.outbound.stripe_stand_in import KEY, WEBHOOK_SECRET, Session, StripeStandIn, event, signed

pytestmark = pytest.mark.slow


CALLBACK = "https://app.example.org/callback"
PAGE = "/accounts/pricing/upgrade"


@pytest.fixture
async def stripe(nursery: trio.Nursery) -> StripeStandIn:
    stand_in = StripeStandIn()
    await nursery.start(stand_in.run)
    return stand_in


@pytest.fixture
async def services(opener: ServicesOpener, stripe: StripeStandIn) -> AsyncIterator[Services]:
    wanted = PaymentSettings(
        processor="stripe", stripe_key=KEY, stripe_webhook_secret=WEBHOOK_SECRET, stripe_url=stripe.url
    )
    processor = Stripe(OutboundHttp(client_context(""), allow_private=True), wanted)
    async with opener(processor=processor) as opened:
        yield opened


@pytest.fixture
async def pages(services: Services, door: Address, world: World) -> AsyncIterator[httpx.AsyncClient]:
    plan = {"device_type": LIGHT_TYPE, "free_messages_per_day": 150, "paid_cost": "2.99"}
    await services.provisioning.apply({"plans": [plan]})
    async with DirectClient(door, "") as client:
        yield client


async def upgrade_token(services: Services) -> str:
    """The one-time token of a new upgrade address."""
    caller = await services.accounts.tokens.caller(ADA_TOKEN)
    url = await services.monetization.payments.upgrade_url(
        caller, await services.devices.registry.find(KITCHEN), "upgrade"
    )
    return url.partition("token=")[2]


async def press(pages: httpx.AsyncClient, token: str) -> httpx.Response:
    """The button of the upgrade page."""
    return await pages.post(PAGE, data={"token": token, "redirect_uri": CALLBACK})


async def begin(services: Services, pages: httpx.AsyncClient, stripe: StripeStandIn) -> Session:
    """From a new address to the session that the browser is sent to."""
    location = (await press(pages, await upgrade_token(services))).headers["Location"]
    return next(session for session in stripe.sessions.values() if session.url == location)


async def tell(pages: httpx.AsyncClient, notification: bytes) -> None:
    """Fake of Stripe."""
    answer = await pages.post(
        "/accounts/pricing/notifications", content=notification, headers=signed(notification, time.time())
    )
    assert answer.status_code == 200


async def come_back(pages: httpx.AsyncClient, session: Session, *, cancelled: bool = False) -> str:
    """Where the browser ends when it leaves Stripe's page."""
    query = session.form["cancel_url" if cancelled else "success_url"].partition("?")[2]
    return str((await pages.get(f"{PAGE}?{query}")).headers.get("Location", "nowhere"))


async def active_tier(services: Services) -> str:
    found = await services.monetization.tiers.of_device(await services.devices.registry.find(KITCHEN))
    return next(tier.record.name for tier in found if tier.active)


async def status_of(services: Services, session: Session) -> str:
    found = await services.core.database.read(lambda tx: tx.monetization.payment(session.reference))
    assert found is not None
    return found.status


# --- Two addresses ---


async def test_of_two_addresses_side_by_side_only_the_later_one_can_be_paid(
    services: Services, pages: httpx.AsyncClient, stripe: StripeStandIn
) -> None:
    tokens = [await upgrade_token(services) for _ in range(2)]
    for token in tokens:
        assert (await pages.get(PAGE, params={"token": token, "redirect_uri": CALLBACK})).status_code == 200
    for token in tokens:
        assert (await press(pages, token)).status_code == 302
    first, second = stripe.sessions.values()
    assert (first.status, second.status) == ("expired", "open")

    await tell(pages, event("checkout.session.expired", first.reference))
    await tell(pages, second.pay())
    assert await come_back(pages, first) == f"{CALLBACK}?status=declined"
    assert await come_back(pages, second) == f"{CALLBACK}?status=accepted"
    assert await active_tier(services) == "Paid"
    assert await services.monetization.payments.to_refund() == []


async def test_of_two_buttons_pressed_at_the_same_time_only_one_leads_to_a_checkout(
    services: Services, pages: httpx.AsyncClient, stripe: StripeStandIn
) -> None:
    """The first payment has begun and its session is made, but the session is not stored yet."""
    made, go_on, answers = trio.Event(), trio.Event(), list[httpx.Response]()

    async def hold_the_first() -> None:
        if not made.is_set():
            made.set()
            await go_on.wait()

    async def press_the_first() -> None:
        answers.append(await press(pages, await upgrade_token(services)))

    stripe.before_answer = hold_the_first
    async with trio.open_nursery() as browsers:
        browsers.start_soon(press_the_first)
        await made.wait()
        second = await begin(services, pages, stripe)
        go_on.set()
    assert [(answer.status_code, "Another payment for this device has begun" in answer.text) for answer in answers] == [
        (409, True)
    ]
    assert [one.record.id for one in await services.monetization.payments.pending()] == [second.reference]


async def test_after_the_first_was_paid_the_second_address_leads_nowhere(
    services: Services, pages: httpx.AsyncClient, stripe: StripeStandIn
) -> None:
    """That is so even before Stripe has told us."""
    first = await begin(services, pages, stripe)
    token = await upgrade_token(services)
    notification = first.pay()
    refused = await press(pages, token)
    assert (refused.status_code, "The device is on its paid tier" in refused.text) == (409, True)
    assert (len(stripe.sessions), await active_tier(services)) == (1, "Paid")
    await tell(pages, notification)
    assert await come_back(pages, first) == f"{CALLBACK}?status=accepted"


async def test_while_money_is_on_its_way_nobody_pays_again(
    services: Services, pages: httpx.AsyncClient, stripe: StripeStandIn
) -> None:
    first = await begin(services, pages, stripe)
    await tell(pages, first.pay("unpaid"))
    token = await upgrade_token(services)
    refused = await press(pages, token)
    assert (refused.status_code, "on its way" in refused.text) == (409, True)

    await tell(pages, event("checkout.session.async_payment_failed", first.reference))
    assert await come_back(pages, first) == f"{CALLBACK}?status=failed"
    assert (await press(pages, token)).status_code == 302


async def test_a_checkout_that_cannot_be_closed_stops_the_next_one_until_it_can(
    services: Services, pages: httpx.AsyncClient, stripe: StripeStandIn
) -> None:
    first = await begin(services, pages, stripe)
    token = await upgrade_token(services)
    stripe.answer = (500, b"{}")
    refused = await press(pages, token)
    assert (refused.status_code, "Retry-After" in refused.headers) == (503, True)
    assert await status_of(services, first) == "pending"
    stripe.answer = None
    assert (await press(pages, token)).status_code == 302
    assert [session.reference for session in stripe.open_sessions()] != [first.reference]


async def test_without_a_checkout_the_application_hears_that_the_payment_failed(
    services: Services, pages: httpx.AsyncClient, stripe: StripeStandIn
) -> None:
    stripe.answer = (500, b"{}")
    failed = await press(pages, await upgrade_token(services))
    assert (failed.status_code, failed.headers["Location"]) == (302, f"{CALLBACK}?status=failed")
    stripe.answer = None
    assert (await press(pages, await upgrade_token(services))).status_code == 302


async def test_a_session_that_ended_without_a_word_is_not_in_the_way(
    services: Services, pages: httpx.AsyncClient, stripe: StripeStandIn
) -> None:
    """Stripe gives up telling us after three days."""
    first = await begin(services, pages, stripe)
    first.status = "expired"
    await begin(services, pages, stripe)
    assert await status_of(services, first) == "declined"


# --- The daemon may die ---


async def test_a_daemon_that_dies_before_it_knows_the_session_sends_nobody_there(
    services: Services, pages: httpx.AsyncClient, stripe: StripeStandIn
) -> None:
    token = await upgrade_token(services)
    with trio.CancelScope() as life:

        async def die() -> None:
            life.cancel()

        stripe.before_answer = die
        await services.monetization.payments.pay(token, CALLBACK)
    assert life.cancelled_caught
    [lost] = stripe.sessions.values()

    stripe.before_answer = trio.lowlevel.checkpoint
    second = await begin(services, pages, stripe)
    assert await status_of(services, lost) == "declined"
    assert [one.record.id for one in await services.monetization.payments.pending()] == [second.reference]
    await tell(pages, second.pay())
    assert await active_tier(services) == "Paid"


async def test_a_daemon_that_dies_after_closing_a_checkout_closes_it_again(
    services: Services, pages: httpx.AsyncClient, stripe: StripeStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await begin(services, pages, stripe)
    token = await upgrade_token(services)
    with trio.CancelScope() as life:

        async def die(*_arguments: object, **_more: object) -> None:
            life.cancel()
            await trio.lowlevel.checkpoint()

        with monkeypatch.context() as dying:
            dying.setattr(services.monetization.payments, "_decide", die)
            await services.monetization.payments.pay(token, CALLBACK)
    assert (first.status, await status_of(services, first)) == ("expired", "pending")
    assert (await press(pages, token)).status_code == 302
    assert (await status_of(services, first), len(stripe.open_sessions())) == ("declined", 1)


async def test_a_payment_holds_also_when_whoever_told_us_has_gone(
    services: Services, pages: httpx.AsyncClient, stripe: StripeStandIn, world: World
) -> None:
    paid = (await begin(services, pages, stripe)).pay()
    with trio.CancelScope() as gone:
        gone.cancel()
        await services.monetization.payments.hear(paid, signed(paid, time.time()))
    assert gone.cancelled_caught
    await services.core.database.write(lambda _tx: None)  # and with it whatever was begun before
    standing = services.limits.quotas.standing(await services.devices.registry.get(world.kitchen)).device
    assert standing is not None
    assert standing.limit == -1


# --- Leaving, and the operator's word ---


async def test_who_leaves_the_checkout_cannot_pay_it_any_more(
    services: Services, pages: httpx.AsyncClient, stripe: StripeStandIn
) -> None:
    session = await begin(services, pages, stripe)
    looked = await pages.head(f"{PAGE}?{session.form['cancel_url'].partition('?')[2]}")
    assert (looked.status_code, session.status) == (200, "open")  # only looking
    assert await come_back(pages, session, cancelled=True) == f"{CALLBACK}?status=declined"
    assert session.status == "expired"


async def test_who_leaves_after_paying_has_paid(
    services: Services, pages: httpx.AsyncClient, stripe: StripeStandIn
) -> None:
    session = await begin(services, pages, stripe)
    session.pay()
    assert await come_back(pages, session, cancelled=True) == f"{CALLBACK}?status=accepted"


async def test_leaving_is_not_final_while_stripe_does_not_answer(
    services: Services, pages: httpx.AsyncClient, stripe: StripeStandIn
) -> None:
    session = await begin(services, pages, stripe)
    stripe.answer = (500, b"{}")
    assert await come_back(pages, session, cancelled=True) == "nowhere"
    assert await status_of(services, session) == "pending"


@pytest.mark.parametrize(("outcome", "tier"), [("accepted", "Paid"), ("declined", "Free")])
async def test_what_the_operator_decides_cannot_be_paid_any_more(
    services: Services, pages: httpx.AsyncClient, stripe: StripeStandIn, outcome: str, tier: str
) -> None:
    session = await begin(services, pages, stripe)
    await MONETIZATION_COMMANDS["payments decide"](services, {"reference": session.reference, "outcome": outcome})
    assert (session.status, await status_of(services, session)) == ("expired", outcome)
    assert await active_tier(services) == tier


async def test_the_operator_cannot_decline_what_was_paid(
    services: Services, pages: httpx.AsyncClient, stripe: StripeStandIn
) -> None:
    session = await begin(services, pages, stripe)
    session.pay()
    with pytest.raises(Conflict, match="The payment is accepted"):
        await services.monetization.payments.decide(session.reference, "declined")
    assert await active_tier(services) == "Paid"


async def test_the_operator_decides_nothing_while_stripe_does_not_answer(
    services: Services, pages: httpx.AsyncClient, stripe: StripeStandIn
) -> None:
    session = await begin(services, pages, stripe)
    stripe.answer = (500, b"{}")
    with pytest.raises(ProcessorUnavailable):
        await services.monetization.payments.decide(session.reference, "declined")
    assert await status_of(services, session) == "pending"


# --- Money that has to go back ---


async def test_money_for_what_another_payment_has_paid_is_shown_to_the_operator_until_it_is_sent_back(
    services: Services, pages: httpx.AsyncClient, stripe: StripeStandIn
) -> None:
    """The operator gives up a payment whose money takes days, the owner pays again, and then both come."""
    first = await begin(services, pages, stripe)
    await tell(pages, first.pay("unpaid"))
    await services.monetization.payments.decide(first.reference, "declined")
    second = await begin(services, pages, stripe)
    await tell(pages, second.pay())
    for _ in range(2):  # Stripe repeats itself
        await tell(pages, event("checkout.session.async_payment_succeeded", first.reference))

    [payment] = await services.monetization.payments.to_refund()
    assert (payment.record.id, payment.record.external_id) == (first.reference, f"cs_test_{first.reference}")
    assert (await status_of(services, second), await active_tier(services)) == ("accepted", "Paid")
    assert await come_back(pages, first) == f"{CALLBACK}?status=accepted"

    await MONETIZATION_COMMANDS["payments refunded"](services, {"reference": first.reference})
    assert (await status_of(services, first), await services.monetization.payments.to_refund()) == ("refunded", [])
    with pytest.raises(Conflict, match="The payment is refunded"):
        await services.monetization.payments.refunded(first.reference)
    with pytest.raises(Conflict, match="The payment is accepted"):
        await services.monetization.payments.refunded(second.reference)


async def test_sessions_that_were_both_open_before_this_rule_are_told_apart(
    services: Services, pages: httpx.AsyncClient, stripe: StripeStandIn
) -> None:
    first = await begin(services, pages, stripe)
    second = await begin(services, pages, stripe)
    first.status = "open"  # as an older version left it
    await services.core.database.write(lambda tx: tx.monetization.decide_payment(first.reference, "pending", now_ms=0))
    await tell(pages, first.pay())
    await tell(pages, second.pay())
    assert (await status_of(services, first), await status_of(services, second)) == ("accepted", "refund_due")


async def test_money_for_a_deleted_device_has_to_go_back(
    services: Services, pages: httpx.AsyncClient, stripe: StripeStandIn
) -> None:
    session = await begin(services, pages, stripe)
    await services.devices.inventory.delete(await services.devices.registry.find(KITCHEN))
    await tell(pages, session.pay())
    assert [one.record.id for one in await services.monetization.payments.to_refund()] == [session.reference]


@pytest.mark.both_engines
async def test_without_an_application_the_page_says_that_the_money_goes_back(
    services: Services, pages: httpx.AsyncClient, stripe: StripeStandIn
) -> None:
    await pages.post(PAGE, data={"token": await upgrade_token(services)})
    [session] = stripe.sessions.values()
    await services.devices.inventory.delete(await services.devices.registry.find(KITCHEN))
    await tell(pages, session.pay())
    shown = await pages.get(f"{PAGE}?{session.form['success_url'].partition('?')[2]}")
    assert "Your money goes back" in shown.text
    assert session.reference in shown.text
