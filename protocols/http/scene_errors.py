"""The members that errors of scenes have besides those of all errors (reference 12.5)."""

from collections.abc import Mapping
from typing import Final

from broker.errors import DomainError, ValidationFailed
from broker.scenes.sending import SceneInvalid
from protocols.http.answers import REST_ROOT

ERROR_TYPES: Final = ("ValidationError", "PermissionDenied", "NotFound", "SceneInvalid")
_BY_STATUS: Final = {400: "ValidationError", 403: "PermissionDenied", 404: "NotFound"}


def scene_members(route: str, error: DomainError) -> Mapping[str, str]:
    """`errorType` and `errorMessage` of a refusal on this route. Refusals of other kinds have none."""
    path = route.removeprefix(REST_ROOT)
    if not path.startswith("/scenes") and not (path.startswith("/users/") and path.endswith("/scenes")):
        return {}
    kind = "SceneInvalid" if isinstance(error, SceneInvalid) else _BY_STATUS.get(error.status)
    return {} if kind is None else {"errorType": kind, "errorMessage": _message(error)}


def _message(error: DomainError) -> str:
    if not isinstance(error, ValidationFailed) or not error.findings:
        return str(error)
    return "; ".join(f"{one.field}: {', '.join(one.messages)}" for one in error.findings)
