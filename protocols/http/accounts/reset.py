"""/reset: asking for a reset mail, and setting a new password with the code in the mail."""

from typing import Any

from quart import Blueprint, Response

from broker.accounts.claims import Claims
from broker.accounts.hashing import TooBusy
from broker.accounts.resets import PasswordResets
from broker.errors import DomainError, LinkOver, TooManyAttempts, ValidationFailed
from broker.words import Words
from protocols.http.accounts.browsers import Browsers, remote_address
from protocols.http.accounts.caching import account_page
from protocols.http.accounts.claims import claim_page
from protocols.http.accounts.forms import FormData
from protocols.http.accounts.pages import notice, pages_blueprint
from protocols.http.reading import Query
from protocols.http.texts import reason_of


def reset_blueprint(resets: PasswordResets, claims: Claims, browsers: Browsers) -> Blueprint:
    routes = pages_blueprint("reset")

    def old() -> dict[str, Any]:
        return {"status": 403, "problem": browsers.why_not_shown}

    def request_page(*, name: str = "", status: int = 200, **why: Any) -> Response:
        return browsers.form_page("reset.html", status=status, name=name, **why)

    async def password_page(
        code: str, *, status: int = 200, problem: str = "", refused: DomainError | None = None
    ) -> Response:
        user = await resets.find(code)
        return browsers.form_page(
            "new_password.html",
            status=status,
            problem=problem,
            refused=refused,
            email=user.email,
            code=code,
        )

    @routes.get("/reset")
    async def show() -> Response:
        code = Query.of_request().text("code")
        return request_page() if code is None else await password_page(code)

    @routes.post("/reset")
    async def send() -> Response:
        form = await FormData.of_request()
        code, is_shown = form.text("code"), browsers.showed_form(form.text("csrf"))
        if code:
            return await set_password(code, form.text("password")) if is_shown else await password_page(code, **old())
        name = form.text("email")
        if not is_shown or not name.strip():
            return request_page(name=name, **(old() if not is_shown else _EMPTY))
        try:
            await resets.ask(name, address=remote_address())
        except TooManyAttempts as refused:
            return request_page(name=name, refused=refused)
        return notice(
            "Look into your mail",
            "If there is an account with this address or name, a mail with a link is on its way to it.",
            "The link works once, for 30 minutes.",
        )

    @routes.errorhandler(LinkOver)
    async def over(refused: LinkOver) -> Response:
        return notice(
            "Too late", reason_of(refused), status=refused.status, next_link=("/reset", "Ask for another mail")
        )

    async def set_password(code: str, password: str) -> Response:
        try:
            done = await resets.set_password(code, password)
        except (ValidationFailed, TooBusy) as refused:
            return await password_page(code, refused=refused)
        user = done.user
        next_link, title = (account_page(), Words("Sign in")), Words("Your password is set")
        claim = await claims.of(user.key) if done.is_claim else None
        if claim is not None:
            answer = claim_page(title, user, claim, next_link=next_link)
        else:
            answer = notice(
                title,
                Words("You can sign in as {address} with the new password now.", address=user.email),
                "You were signed out everywhere, and applications have to ask you again.",
                "Rules and subscriptions that applications made for you go on. After you have signed in, you can look"
                " at them and end them all.",
                next_link=("/account/automations", "See what applications made"),
            )
        browsers.forget(answer)
        return answer

    return routes


_EMPTY: dict[str, Any] = {"status": 400, "problem": "Please type your e-mail address or user name."}
