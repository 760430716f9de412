"""The headers of every accounts answer, also of the refusals (compatibility.md 1.4)."""

from typing import Final

from quart import Response, request

from protocols.http.answers import REST_ROOT

ACCOUNTS_ROOT: Final = "/accounts"
_CORS: Final = "Access-Control-"


async def forbid_storing(answer: Response) -> Response:
    """Nobody may store them. Those on the REST root go to no other origin; those of the accounts server to every."""
    on_accounts, on_rest = _is_under(ACCOUNTS_ROOT), _is_under(REST_ROOT + ACCOUNTS_ROOT)
    if not (on_accounts or on_rest):
        return answer
    for name in [name for name in answer.headers.keys() if name.startswith(_CORS)]:  # noqa: SIM118 - no mapping
        del answer.headers[name]
    answer.headers["Cache-Control"] = "no-store"
    answer.headers["Pragma"] = "no-cache"
    if on_accounts:
        answer.headers["Access-Control-Allow-Origin"] = "*"
    return answer


def _is_under(root: str) -> bool:
    return request.path == root or request.path.startswith(f"{root}/")
