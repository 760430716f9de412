"""/pricing/upgrade, the page where a person pays for a device's paid tier (reference 13).

The one-time token in the address authorizes the browser. Pressing the button uses the token up. From then on the
browser has another code, in `payment`, with which it can ask for the state of the payment at any time.
"""

import re

import structlog
from quart import Blueprint, Response, request

from broker.monetization.payments import BegunPayment, Payment, Payments
from broker.monetization.port import NotificationRefused
from broker.words import Words
from protocols.http.accounts.caching import accounts_path
from protocols.http.accounts.forms import FormData
from protocols.http.accounts.pages import is_head, notice, pages_blueprint, redirect, render_page
from protocols.http.errors import app_refusals
from protocols.http.reading import Query, read_body

_NOTIFICATION_BYTES = 64 * 1024
_PROCESSORS = "https:"  # payment processors have their pages there
# An application appends `redirect_uri` with `?` or `&`, although the address has a query already.
_APPENDED = re.compile(rb"(token=[0-9a-f]+)\?")
_log = structlog.get_logger(__name__)


def upgrade_blueprint(payments: Payments) -> Blueprint:
    routes = pages_blueprint("upgrade")

    @routes.get("/pricing/upgrade")
    async def show() -> Response:
        query = Query(_APPENDED.sub(rb"\1&", request.query_string, count=1))
        if (back := query.text("payment")) is not None:
            return await come_back(back, cancelled=query.boolean("cancelled", default=False))
        return await _offer(query.text("token") or "", query.text("redirect_uri"))

    @routes.post("/pricing/upgrade")
    async def pay() -> Response:
        form = await FormData.of_request()
        begun = await payments.pay(form.text("token"), form.text("redirect_uri") or None)
        return _after(begun)

    async def _offer(code: str, redirect_uri: str | None) -> Response:
        offer = await payments.offer(code, redirect_uri)
        ways_out = (_PROCESSORS, redirect_uri or "")
        return render_page("upgrade.html", ways_out=ways_out, offer=offer, token=code, redirect_uri=redirect_uri or "")

    async def come_back(back: str, *, cancelled: bool) -> Response:
        is_over = cancelled and not is_head()
        payment = await (payments.cancelled(back) if is_over else payments.returned(back))
        return _how_it_stands(payment, back, payments.price(payment.tier))

    @routes.post("/pricing/notifications")
    async def hear() -> Response:
        """A signed notification of the payment processor."""
        try:
            headers = {name.lower(): value for name, value in request.headers.items()}
            await payments.hear(await read_body(limit=_NOTIFICATION_BYTES), headers)
        except NotificationRefused as error:
            app_refusals().note("payment_notification_refused", reason=str(error))
            return Response(b"", 400)
        return Response(b"")

    return routes


def _after(begun: BegunPayment) -> Response:
    if begun.url is not None:
        return redirect(begun.url)
    if begun.payment.destination is not None:
        return redirect(begun.payment.destination)
    return redirect(f"{accounts_path()}/pricing/upgrade?payment={begun.code}")


def _how_it_stands(payment: Payment, back: str, price: str) -> Response:
    if payment.destination is not None:
        return redirect(payment.destination)
    match payment.record.status:
        case "pending":
            return render_page("upgrade_waiting.html", payment=payment, price=price, back=back)
        case "accepted":
            return notice("Thank you", Words("{tier} is active now. You may close this page.", tier=payment.tier.name))
        case "declined":
            return notice("Nothing was paid", "The upgrade was declined. Your device stays on its tier.")
        case "refund_due" | "refunded":
            reference = Words("If you ask about the money, please name the reference {id}.", id=payment.record.id)
            return notice("Your money goes back", "The upgrade was paid already, or the device is deleted.", reference)
        case _:
            return notice("The payment failed", "Your device stays on its tier. Please try again later.")
