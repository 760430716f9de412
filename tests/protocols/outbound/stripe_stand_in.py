"""A stand-in for Stripe's API: it checks the form of requests as Stripe does, and signs its notifications."""

import hmac
from collections.abc import Awaitable, Callable, Mapping
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

from tests.protocols.http.routes import SharingApp

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
_KNOWN = {*_REQUIRED, "payment_intent_data[metadata][reference]"}


@dataclass
class Session:
    """A Checkout session. Only one that is open can be paid, or be expired."""

    form: dict[str, str]
    status: str = "open"
    payment_status: str = "unpaid"

    @property
    def reference(self) -> str:
        return self.form["client_reference_id"]

    @property
    def url(self) -> str:
        return f"https://checkout.example/pay/{self.reference}"

    def pay(self, payment_status: str = "paid") -> bytes:
        """Complete a session as on Stripe's page; return the notification. `unpaid`: the money takes some days."""
        assert self.status == "open", f"nobody can pay a session that is {self.status}"
        self.status, self.payment_status = "complete", payment_status
        return event("checkout.session.completed", self.reference, payment_status=payment_status)

    def shown(self) -> bytes:
        shown = {
            "id": f"cs_test_{self.reference}",
            "object": "checkout.session",
            "client_reference_id": self.reference,
            "status": self.status,
            "payment_status": self.payment_status,
            "url": self.url if self.status == "open" else None,
        }
        return msgspec.json.encode(shown)


async def _at_once() -> None:
    pass


@dataclass
class StripeStandIn:
    """Stripe, at `url`.

    `answer`, a status and a body, replaces what it would have answered. `before_answer` runs when a session has been
    made and before the answer is sent.
    """

    sessions: dict[str, Session] = field(default_factory=dict)  # by idempotency key
    answer: tuple[int, bytes] | None = None
    before_answer: Callable[[], Awaitable[None]] = _at_once
    url: str = ""

    def open_sessions(self) -> list[Session]:
        return [session for session in self.sessions.values() if session.status == "open"]

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        config = Config()
        config.bind = ["127.0.0.1:0"]
        config.errorlog = None
        async with trio.open_nursery() as nursery:
            self.url = (await nursery.start(serve, self._app(), config))[0]
            task_status.started()

    def _app(self) -> QuartTrio:
        app = SharingApp("stripe")

        @app.before_request
        async def refuse() -> Response | None:
            if self.answer is not None:
                return Response(self.answer[1], self.answer[0])
            if request.headers.get("Authorization") != f"Bearer {KEY}":
                return _error(401, "Invalid API Key provided")
            return None

        @app.post("/v1/checkout/sessions")
        async def create() -> Response:
            form = dict(parse_qsl(str(await request.get_data(as_text=True))))
            if problem := _problem(request.headers, form):
                return _error(400, problem)
            session = self.sessions.setdefault(request.headers["Idempotency-Key"], Session(form))
            if session.form != form:
                return _error(400, "Keys for idempotent requests can only be used with the same parameters")
            await self.before_answer()
            return Response(session.shown(), 200, content_type="application/json")

        @app.get("/v1/checkout/sessions/<id_>")
        async def retrieve(id_: str) -> Response:
            session = self.sessions.get(id_.removeprefix("cs_test_"))
            return _missing(id_) if session is None else Response(session.shown(), 200, content_type="application/json")

        @app.post("/v1/checkout/sessions/<id_>/expire")
        async def expire(id_: str) -> Response:
            session = self.sessions.get(id_.removeprefix("cs_test_"))
            if session is None:
                return _missing(id_)
            if await request.get_data():
                return _error(400, "Received unknown parameters")
            if session.status != "open":
                said = f'Only Checkout Sessions with a status in ["open"] can be expired. This is {session.status}.'
                return _error(400, said)
            session.status = "expired"
            return Response(session.shown(), 200, content_type="application/json")

        return app


def _error(status: int, message: str, **members: str) -> Response:
    body = {"error": {"type": "invalid_request_error", "message": message, **members}}
    return Response(msgspec.json.encode(body), status, content_type="application/json")


def _missing(id_: str) -> Response:
    return _error(404, f"No such checkout.session: {id_}", code="resource_missing")


def _problem(headers: Headers, form: Mapping[str, str]) -> str | None:
    if headers.get("Content-Type") != "application/x-www-form-urlencoded":
        return "wrong content type"
    if unknown := set(form) - _KNOWN:
        return f"Received unknown parameters: {unknown}"
    for name, only in _REQUIRED.items():
        if name not in form or (only is not None and form[name] != only):
            return f"Missing or wrong param: {name}"
    amount = form["line_items[0][price_data][unit_amount]"]
    return None if amount.isdecimal() and int(amount) > 0 else "Invalid integer"


def event(kind: str, reference: str, **session: Any) -> bytes:
    """A notification of Stripe."""
    about = {"object": "checkout.session", "client_reference_id": reference, **session}
    return msgspec.json.encode({"id": "evt_1", "object": "event", "type": kind, "data": {"object": about}})


def signed(body: bytes, at: float, *, secret: str = WEBHOOK_SECRET) -> dict[str, str]:
    stamp = str(int(at))
    signature = hmac.new(secret.encode(), stamp.encode() + b"." + body, sha256).hexdigest()
    return {"stripe-signature": f"t={stamp},v0={'0' * 64},v1={signature}"}
