"""Unknown paths beside REST and wrong methods (404 and 405): a page for browsers, JSON for programs."""

from quart import Quart, Response, request
from werkzeug.exceptions import HTTPException, MethodNotAllowed, NotFound

from protocols.http.accounts.caching import is_accounts_path
from protocols.http.accounts.pages import LOST, NO_PAGE, error_page, protect
from protocols.http.answers import REST_ROOT
from protocols.http.errors import allow_methods, forget_frames, refused_by_http

_ONLY_FORMS = "This address is only for the form of another page. It cannot be opened by itself."


def answer_unknown_paths(app: Quart) -> None:
    app.register_error_handler(NotFound, _refused)
    app.register_error_handler(MethodNotAllowed, _refused)


async def _refused(error: HTTPException) -> Response:
    # Browsers name text/html in Accept; a client that names no type, or `*/*` only, is a program.
    is_rest = _is_under_rest() and not is_accounts_path()
    if is_rest or "text/html" not in request.accept_mimetypes.values():
        return await refused_by_http(error)
    forget_frames(error)
    if isinstance(error, MethodNotAllowed):
        return allow_methods(await protect(error_page(405, _ONLY_FORMS)), error)
    return await protect(error_page(404, NO_PAGE, lost=LOST))


def _is_under_rest() -> bool:
    return request.path == REST_ROOT or request.path.startswith(f"{REST_ROOT}/")
