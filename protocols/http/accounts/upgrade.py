"""/pricing/upgrade: where a browser pays for a device's paid tier (reference 13).

The one-time token in the address is all that a browser needs. Pressing the button uses it up; from then on the browser
has a way back of its own, which tells whether the payment is decided whenever somebody looks.
"""

import re

import structlog
from quart import Blueprint, Response, request

from broker.monetization.payments import Begun, Payment, Payments
from broker.monetization.port import NotificationRefused
from protocols.http.accounts.caching import accounts_path
from protocols.http.accounts.forms import Form
from protocols.http.accounts.pages import notice, only_looks, page, pages_blueprint, redirect_to
from protocols.http.body import Query, read_body

_NOTIFICATION_BYTES = 64 * 1024
_PROCESSORS = "https:"  # where their pages are
# An application appends `redirect_uri` to the address with `?` or `&`, whatever the address has already.
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
        form = await Form.of_request()
        begun = await payments.pay(form.text("token"), form.text("redirect_uri") or None)
        return _after(begun)

    async def _offer(code: str, redirect_uri: str | None) -> Response:
        offer = await payments.offer(code, redirect_uri)
        ways_out = (_PROCESSORS, redirect_uri or "")
        return page("upgrade.html", ways_out=ways_out, offer=offer, token=code, redirect_uri=redirect_uri or "")

    async def come_back(back: str, *, cancelled: bool) -> Response:
        is_over = cancelled and not only_looks()
        payment = await (payments.cancelled(back) if is_over else payments.returned(back))
        return _how_it_stands(payment, back, payments.price(payment.tier))

    @routes.post("/pricing/notifications")
    async def hear() -> Response:
        """What the payment processor tells us, signed by it."""
        try:
            headers = {name.lower(): value for name, value in request.headers.items()}
            await payments.hear(await read_body(limit=_NOTIFICATION_BYTES), headers)
        except NotificationRefused as error:
            _log.warning("payment_notification_refused", reason=str(error))
            return Response(b"", 400)
        return Response(b"")

    return routes


def _after(begun: Begun) -> Response:
    if begun.url is not None:
        return redirect_to(begun.url)
    if begun.payment.destination is not None:
        return redirect_to(begun.payment.destination)
    return redirect_to(f"{accounts_path()}/pricing/upgrade?payment={begun.code}")


def _how_it_stands(payment: Payment, back: str, price: str) -> Response:
    if payment.destination is not None:
        return redirect_to(payment.destination)
    match payment.record.status:
        case "pending":
            return page("upgrade_waiting.html", payment=payment, price=price, back=back)
        case "accepted":
            return notice("Thank you", f"{payment.tier.name} is active now. You may close this page.")
        case "declined":
            return notice("Nothing was paid", "The upgrade was declined. Your device stays on its tier.")
        case "refund_due" | "refunded":
            reference = f"If you ask about the money, please name the reference {payment.record.id}."
            return notice("Your money goes back", "The upgrade was paid already, or the device is deleted.", reference)
        case _:
            return notice("The payment failed", "Your device stays on its tier. Please try again later.")
