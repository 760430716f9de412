"""Paths that the specification withdrew and older clients still use: their answers say so (reference 4.2)."""

from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Final

from quart import Response, request

from protocols.http.accounts.caching import accounts_path, is_accounts_path

_PATHS: Final = frozenset({"/signin", "/signout", "/revokeAccessToken"})
_SINCE: Final = datetime(2018, 4, 1, tzinfo=UTC)  # specification, "Versioning"
_HEADERS: Final = {
    "Deprecation": f"@{int(_SINCE.timestamp())}",  # RFC 9745, 2.1
    "Sunset": format_datetime(_SINCE, usegmt=True),  # RFC 8594, 3: it may end at any time
}


async def tell_of_withdrawal(answer: Response) -> Response:
    if is_accounts_path() and request.path.removeprefix(accounts_path()) in _PATHS:
        answer.headers.update(_HEADERS)
    return answer
