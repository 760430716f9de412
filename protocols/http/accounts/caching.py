"""The prefix of the accounts paths, and the headers of all their answers, also of errors (reference 1.4)."""

from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Final

from quart import Response, current_app, request

from protocols.http.answers import REST_ROOT

#: The key in the application's configuration: the prefix of every accounts path, `/accounts` or empty.
ROOT_SETTING: Final = "ACCOUNTS_PATH"
#: The key in the application's configuration: gives the origin of the console, empty where it is the listener's own.
CONSOLE_SETTING: Final = "CONSOLE_ORIGIN"
_REST_ACCOUNTS: Final = f"{REST_ROOT}/accounts"
_CORS: Final = "Access-Control-"
_WITHDRAWN: Final = frozenset({"/signin", "/signout", "/revokeAccessToken"})
_WITHDRAWN_ON: Final = datetime(2018, 4, 1, tzinfo=UTC)  # specification, "Versioning"
_OF_WITHDRAWN: Final = {
    "Deprecation": f"@{int(_WITHDRAWN_ON.timestamp())}",  # RFC 9745, 2.1
    "Sunset": format_datetime(_WITHDRAWN_ON, usegmt=True),  # RFC 8594, 3: it may end at any time
}


def accounts_path() -> str:
    """The prefix of the accounts paths on the listener of this request."""
    path: str = current_app.config[ROOT_SETTING]
    return path


def console_address(path: str) -> str:
    """A page of the console by its path below /console: a path, or a whole address on a listener without console."""
    console_origin: Callable[[], str] = current_app.config[CONSOLE_SETTING]
    return f"{console_origin()}/console{path}"


def account_page() -> str:
    """The page of a person's account, which is in the console."""
    return console_address("/account")


def is_accounts_path() -> bool:
    """Whether this request is for the accounts server, and not for REST."""
    return _is_under(accounts_path())


async def forbid_storing(answer: Response) -> Response:
    """Forbid caching. Answers of the accounts server are for every origin, those on the REST root for no other one."""
    on_accounts, on_rest = is_accounts_path(), _is_under(_REST_ACCOUNTS)
    if not (on_accounts or on_rest):
        return answer
    for name in [name for name in answer.headers.keys() if name.startswith(_CORS)]:  # noqa: SIM118 - no mapping
        del answer.headers[name]
    answer.headers["Cache-Control"] = "no-store"
    answer.headers["Pragma"] = "no-cache"
    if on_accounts:
        answer.headers["Access-Control-Allow-Origin"] = "*"
    return answer


async def tell_of_withdrawal(answer: Response) -> Response:
    """Paths that the specification withdrew and older clients still use: their answers say so (reference 4.2)."""
    if is_accounts_path() and request.path.removeprefix(accounts_path()) in _WITHDRAWN:
        answer.headers.update(_OF_WITHDRAWN)
    return answer


def _is_under(root: str) -> bool:
    return request.path == root or request.path.startswith(f"{root}/")
