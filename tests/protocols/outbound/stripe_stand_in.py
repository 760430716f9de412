"""A stand-in for Stripe's API: it checks the form of what it is asked, as the real one does, and signs what it says."""

import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any
from urllib.parse import parse_qsl

import msgspec
import trio
from hypercorn.config import Config
from hypercorn.trio import serve
from quart import Response, request
from quart_trio import QuartTrio
from werkzeug.datastructures import Headers

KEY, WEBHOOK_SECRET = "sk_test_of_the_stand_in", "whsec_of_the_stand_in"
_REQUIRED = {
    "mode": "payment",
    "line_items[0][quantity]": "1",
    "line_items[0][price_data][currency]": None,
    "line_items[0][price_data][unit_amount]": None,
    "line_items[0][price_data][product_data][name]": None,
    "client_reference_id": None,
    "success_url": None,
    "cancel_url": None,
}
_KNOWN = {*_REQUIRED, "metadata[reference]"}


@dataclass
class StripeStandIn:
    """`answers` replaces what it would have said: a status and a body."""

    sessions: dict[str, dict[str, str]] = field(default_factory=dict)  # by idempotency key
    answer: tuple[int, bytes] | None = None
    url: str = ""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        config = Config()
        config.bind = ["127.0.0.1:0"]
        config.errorlog = None
        async with trio.open_nursery() as nursery:
            self.url = (await nursery.start(serve, self._app(), config))[0]
            task_status.started()

    def _app(self) -> QuartTrio:
        app = QuartTrio("stripe")

        @app.post("/v1/checkout/sessions")
        async def create() -> Response:
            if self.answer is not None:
                return Response(self.answer[1], self.answer[0])
            form = dict(parse_qsl(str(await request.get_data(as_text=True))))
            problem = _problem(request.headers, form)
            if problem is not None:
                return Response(msgspec.json.encode({"error": {"message": problem[1]}}), problem[0])
            session = self.sessions.setdefault(request.headers["Idempotency-Key"], form)
            made = {
                "id": f"cs_test_{session['client_reference_id'][:8]}",
                "object": "checkout.session",
                "url": f"https://checkout.example/pay/{session['client_reference_id']}",
            }
            return Response(msgspec.json.encode(made), 200, content_type="application/json")

        return app


def _problem(headers: Headers, form: Mapping[str, str]) -> tuple[int, str] | None:
    if headers.get("Authorization") != f"Bearer {KEY}":
        return 401, "Invalid API Key provided"
    if headers.get("Content-Type") != "application/x-www-form-urlencoded":
        return 400, "wrong content type"
    if unknown := set(form) - _KNOWN:
        return 400, f"Received unknown parameters: {unknown}"
    for name, only in _REQUIRED.items():
        if name not in form or (only is not None and form[name] != only):
            return 400, f"Missing or wrong param: {name}"
    amount = form["line_items[0][price_data][unit_amount]"]
    return None if amount.isdecimal() and int(amount) > 0 else (400, "Invalid integer")


def event(kind: str, reference: str, **session: Any) -> bytes:
    """What Stripe posts to a webhook."""
    about = {"object": "checkout.session", "client_reference_id": reference, **session}
    return msgspec.json.encode({"id": "evt_1", "object": "event", "type": kind, "data": {"object": about}})


def signed(body: bytes, at: float, *, secret: str = WEBHOOK_SECRET) -> dict[str, str]:
    stamp = str(int(at))
    signature = hmac.new(secret.encode(), stamp.encode() + b"." + body, sha256).hexdigest()
    return {"stripe-signature": f"t={stamp},v0={'0' * 64},v1={signature}"}
