"""Rendering the pages of the accounts server: templates, headers, redirects and error pages."""

import re
from collections.abc import Collection
from functools import cache
from importlib.resources import files
from typing import Any, Final
from urllib.parse import urlsplit

import structlog
from quart import Blueprint, Response, current_app, g, request
from werkzeug.exceptions import HTTPException

from broker.accounts.authorize import AuthorizationRequest, ErrorPage, Redirect
from broker.accounts.consent import ConsentScreen
from broker.accounts.consent_words import how_long
from broker.errors import DomainError, StorageUnavailable, TryLater, ValidationFailed
from broker.ids import new_id
from protocols.http.accounts.caching import accounts_path, console_address
from protocols.http.errors import app_refusals, route_of_request
from protocols.http.templates import templates_of
from protocols.http.texts import alike, reason_of, said
from protocols.refusals import note_refusal
from storage.sql import StoreError

#: Key in the application's configuration: days without use after which an application needs another sign-in.
UNUSED_DAYS_SETTING: Final = "UNUSED_DAYS"
_HTML: Final = "text/html; charset=utf-8"
_HEADERS: Final = {
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_RETRY_SECONDS: Final = 5
#: Texts of pages are English here: whoever shows one says it in the language of the request.
NO_PAGE: Final = "There is no such page here."
LOST: Final = "The address may be mistyped, or what it showed is gone."
_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*")

_log = structlog.get_logger(__name__)
_templates: Final = templates_of("protocols.http.accounts")


def pages_blueprint(name: str) -> Blueprint:
    """A blueprint whose answers are pages, also for errors."""
    routes = Blueprint(name, __name__)
    routes.after_request(protect)
    routes.register_error_handler(DomainError, _refused)
    routes.register_error_handler(HTTPException, _refused_by_http)
    routes.register_error_handler(StoreError, _store_failed)
    routes.register_error_handler(Exception, _failed)
    return routes


def style_blueprint() -> Blueprint:
    routes = Blueprint("style", __name__)
    style = _style()

    @routes.get("/static/style.css")
    async def style_sheet() -> Response:
        answer = Response(style, content_type="text/css; charset=utf-8")
        answer.headers["X-Content-Type-Options"] = "nosniff"
        return answer

    return routes


@cache  # every listener serves the same file
def _style() -> bytes:
    return files("protocols.http.accounts").joinpath("static/style.css").read_bytes()


def render_page(
    template: str,
    status: int = 200,
    *,
    asked: AuthorizationRequest | None = None,
    refused: DomainError | None = None,
    problem: str = "",
    ways_out: Collection[str] = (),
    **values: object,
) -> Response:
    """Render a template.

    Args:
        asked: the authorization request; the forms of the page may lead to its redirect URI.
        refused: the error because of which the page is shown once more; it decides the status, and is logged.
        problem: the text of an error that was not raised.
        ways_out: other addresses, or only their schemes, that the forms may lead to.
    """
    blank = asked is not None and asked.blank_style
    text = _templates.get_template(template).render(
        values, root=accounts_path(), blank=blank, problem=said(problem) if refused is None else _words_of(refused)
    )
    if refused is not None and not isinstance(refused, StorageUnavailable):
        note_refusal(app_refusals(), "page", refused, route=route_of_request(), status=refused.status)
    answer = Response(text, status if refused is None else refused.status, content_type=_HTML)
    schemes = (_schemes_of(one) for one in (*ways_out, *(() if asked is None else (asked.redirect_uri,))))
    targets = " ".join(dict.fromkeys(("'self'", *" ".join(schemes).split())))
    answer.headers["Content-Security-Policy"] = (
        f"default-src 'none'; style-src 'self'; form-action {targets}; frame-ancestors 'none'; base-uri 'none'"
    )
    if answer.status_code in {429, 503}:
        seconds = refused.retry_seconds if isinstance(refused, TryLater) else _RETRY_SECONDS
        answer.headers["Retry-After"] = str(seconds)
    return answer


def screen_values(screen: ConsentScreen) -> dict[str, Any]:
    """The values for asked.html."""
    unused_days: int = current_app.config[UNUSED_DAYS_SETTING]
    return {"screen": screen, "how_long": how_long(unused_days, works_alone=screen.works_alone)}


def notice(
    title: str,
    *paragraphs: str,
    status: int = 200,
    next_link: tuple[str, str] | None = None,
    console: tuple[str, str] | None = None,
) -> Response:
    """A page with a title and paragraphs.

    Args:
        next_link: an accounts path, and the text of a link to it.
        console: a path below /console, and the text of a button that leads there.
    """
    shown = None if console is None else (console_address(console[0]), console[1])
    return render_page("notice.html", status, title=title, paragraphs=paragraphs, next_link=next_link, console=shown)


def _words_of(refused: DomainError) -> str:
    if isinstance(refused, StorageUnavailable) and refused.told:
        return f"{reason_of(refused)}: {refused.told}"
    if not isinstance(refused, ValidationFailed):
        return reason_of(refused)
    return " ".join(alike(message) for finding in refused.findings for message in finding.messages)


def is_head() -> bool:
    """A HEAD request is answered like GET, but must not change anything."""
    return request.method == "HEAD"


def redirect(url: str, status: int = 302) -> Response:
    return Response(b"", status, headers={"Location": url}, content_type=_HTML)


def outcome_response(outcome: Redirect | ErrorPage) -> Response:
    """The answer of /authorize when there is nothing to ask the person."""
    if isinstance(outcome, Redirect):
        return redirect(outcome.url)
    return error_page(outcome.status, outcome.text)


def error_page(status: int, text: str, *, error_id: str = "", lost: str = "") -> Response:
    """`lost`: what to say of an address that leads nowhere, instead of advice to try again."""
    return render_page("error.html", status, problem=text, error_id=error_id, lost=lost)


def _schemes_of(redirect_uri: str) -> str:
    """The `form-action` sources (Content Security Policy) that let a form end at the application's redirect URI.

    Chromium applies `form-action` to every redirect that follows a form: to this service, to the application's redirect
    URI, and from there to any address of the application, which may be on any host. So the policy names schemes and no
    hosts. It still forbids a redirect from https to http, and to a scheme that opens another program.
    """
    try:
        scheme = urlsplit(redirect_uri).scheme
    except ValueError:
        return ""
    if scheme == "http":
        return "http: https:"
    return f"{scheme}:" if _SCHEME.fullmatch(scheme) is not None else ""


async def protect(answer: Response) -> Response:
    """Add the headers of every page."""
    answer.headers.update(_HEADERS)
    if answer.mimetype == "text/html":
        answer.vary.add("Accept-Language")
    return answer


async def _refused(error: DomainError) -> Response:
    error_id = new_id()
    if isinstance(error, StorageUnavailable):
        _log.error("page_storage_unavailable", error_id=error_id, route=route_of_request(), reason=error.reason)
    return render_page("error.html", refused=error, error_id=error_id, lost="")


async def _refused_by_http(error: HTTPException) -> Response:
    if error.code == 404:
        return error_page(404, NO_PAGE, lost=LOST)
    return error_page(error.code or 500, error.name)


async def _store_failed(error: StoreError) -> Response:
    return _to_application() or await _refused(StorageUnavailable.of(error))


async def _failed(error: Exception) -> Response:
    error_id = new_id()
    # Do not log the query or the body: they contain secrets.
    _log.error("page_failed", exc_info=error, error_id=error_id, route=route_of_request())
    return _to_application() or error_page(500, "Something went wrong here. Please try again.", error_id=error_id)


def _to_application() -> Response | None:
    """The `server_error` redirect for an unexpected failure, if the request is known to be valid (reference 3.3)."""
    asked: AuthorizationRequest | None = g.get("asked")
    return redirect(asked.error("server_error").url) if asked is not None else None
