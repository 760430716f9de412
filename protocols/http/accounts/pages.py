"""What every page of the accounts server has: its template, its headers, and how a refusal looks to a person."""

import re
from collections.abc import Collection
from importlib.resources import files
from typing import Final
from urllib.parse import urlsplit

import jinja2
import structlog
from quart import Blueprint, Response, g, request
from werkzeug.exceptions import HTTPException

from broker.accounts.authorize import AuthorizationRequest, Redirect, Refusal
from broker.errors import DomainError, StorageUnavailable, TryLater, ValidationFailed
from broker.ids import new_id
from protocols.http.accounts.caching import accounts_path
from storage.sql import StoreError

_HTML: Final = "text/html; charset=utf-8"
_HEADERS: Final = {
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_RETRY_SECONDS: Final = 5
_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*")

_log = structlog.get_logger(__name__)
_templates: Final = jinja2.Environment(
    loader=jinja2.PackageLoader("protocols.http.accounts"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def pages_blueprint(name: str) -> Blueprint:
    """One whose answers are for people: refusals and failures are pages, too."""
    routes = Blueprint(name, __name__)
    routes.after_request(protect)
    routes.register_error_handler(DomainError, _refused)
    routes.register_error_handler(HTTPException, _refused_by_http)
    routes.register_error_handler(StoreError, _store_failed)
    routes.register_error_handler(Exception, _failed)
    return routes


def style_blueprint() -> Blueprint:
    routes = Blueprint("style", __name__)
    style = files("protocols.http.accounts").joinpath("static/style.css").read_bytes()

    @routes.get("/static/style.css")
    async def style_sheet() -> Response:
        answer = Response(style, content_type="text/css; charset=utf-8")
        answer.headers["X-Content-Type-Options"] = "nosniff"
        return answer

    return routes


def page(
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
        asked: what the page is about; its forms may lead to that application.
        refused: why the page is shown once more; it decides the status.
        problem: the same, when nothing was raised.
        ways_out: other addresses, or just schemes, that its forms may lead to.
    """
    blank = asked is not None and asked.blank_style
    text = _templates.get_template(template).render(
        values, root=accounts_path(), blank=blank, problem=problem if refused is None else _words_of(refused)
    )
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


def notice(title: str, *paragraphs: str, status: int = 200, way_on: tuple[str, str] | None = None) -> Response:
    """A page that says how something ended. `way_on`: a path of ours, and what the link to it says."""
    return page("notice.html", status, title=title, paragraphs=paragraphs, way_on=way_on)


def _words_of(refused: DomainError) -> str:
    if not isinstance(refused, ValidationFailed):
        return str(refused)
    return " ".join(message for finding in refused.findings for message in finding.messages)


def only_looks() -> bool:
    """A HEAD request: it is answered like GET, but nothing may come of it."""
    return request.method == "HEAD"


def redirect_to(url: str, status: int = 302) -> Response:
    return Response(b"", status, headers={"Location": url}, content_type=_HTML)


def told(outcome: Redirect | Refusal) -> Response:
    """What /authorize decided without asking the person, or after that."""
    if isinstance(outcome, Redirect):
        return redirect_to(outcome.url)
    return error_page(outcome.status, outcome.text)


def error_page(status: int, text: str, *, error_id: str = "") -> Response:
    return page("error.html", status, problem=text, error_id=error_id)


def _schemes_of(redirect_uri: str) -> str:
    """CSP sources for the way back to the application.

    Chromium holds a form to `form-action` on every address that its answer redirects to: ours, the application's
    callback, and wherever the callback redirects to, which may be on any host and is not for us to know. So this names
    schemes, no hosts. What a form may not do is leave encryption when the callback does not, or call another program.
    """
    try:
        scheme = urlsplit(redirect_uri).scheme
    except ValueError:
        return ""
    if scheme == "http":
        return "http: https:"
    return f"{scheme}:" if _SCHEME.fullmatch(scheme) is not None else ""


async def protect(answer: Response) -> Response:
    """The headers of every page."""
    answer.headers.update(_HEADERS)
    return answer


async def _refused(error: DomainError) -> Response:
    error_id = new_id()
    if isinstance(error, StorageUnavailable):
        _log.error("page_storage_unavailable", error_id=error_id, path=request.path, reason=error.reason)
    else:
        _log.info("page_refused", error_id=error_id, path=request.path, status=error.status, reason=str(error))
    return page("error.html", refused=error, error_id=error_id)


async def _refused_by_http(error: HTTPException) -> Response:
    return error_page(error.code or 500, error.name)


async def _store_failed(error: StoreError) -> Response:
    return _to_application() or await _refused(StorageUnavailable(str(error)))


async def _failed(error: Exception) -> Response:
    error_id = new_id()
    # Never the query or the body: they carry secrets.
    _log.error("page_failed", exc_info=error, error_id=error_id, path=request.path)
    return _to_application() or error_page(500, "Something went wrong here. Please try again.", error_id=error_id)


def _to_application() -> Response | None:
    """Once a request is known to be valid, the application hears of what is unexpected (reference 3.3)."""
    asked: AuthorizationRequest | None = g.get("asked")
    return redirect_to(asked.error("server_error").url) if asked is not None else None
