"""Refusals in the forms that several protocols share.

REST and WebSocket share the error body and its headers (reference 3.1). MQTT and CoAP share the texts for devices:
reference 16.4 names the device where REST names the organization. REST and MQTT share the members of rate limits.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from broker.accounts.external_refusals import EmailNotVerified, NoAccountHere, ProviderRefused
from broker.accounts.one_time_codes import WrongCode
from broker.accounts.sessions import WrongPassword
from broker.errors import (
    DomainError,
    EncodingNotTaken,
    Finding,
    PayloadTooLarge,
    StorageUnavailable,
    TooManyAttempts,
    TryLater,
    Unauthorized,
    ValidationFailed,
)
from broker.ids import new_id
from broker.limits.refusals import PlanLimitsNotSet, RateLimitExceeded, Standing
from broker.trace.audit import AuditEvent
from broker.trace.refusals import Refusals
from storage.sql import StoreError


class PublishForbidden(DomainError):
    status = 403
    template = "You do not have publish permission to topic"


class SubscribeForbidden(DomainError):
    status = 403
    template = "You do not have subscribe permission to topic"


@dataclass(eq=False)
class ProtocolBroken(DomainError):
    """A packet after which the connection ends."""

    status = 400
    template = "The connection was ended: {reason}"
    reason: str


_DEVICE_TEXTS: Final[dict[type[DomainError], str]] = {
    PayloadTooLarge: "Plan quota exceeded for device {device_id}. Reason: Max payload Size limit",
    PlanLimitsNotSet: "Quota validation error for device {device_id}. Reason: Plan limits have not been set.",
    RateLimitExceeded: "DEVICE {window} rate limit exceeded",
    ValidationFailed: "Bad Request",
}

#: The refusals that the audit log has, too.
_AUDITED: Final[Mapping[type[DomainError], AuditEvent]] = {
    EmailNotVerified: AuditEvent.SIGN_IN,
    NoAccountHere: AuditEvent.SIGN_IN,
    ProviderRefused: AuditEvent.SIGN_IN,
    TooManyAttempts: AuditEvent.LOCK_OUT,
    WrongCode: AuditEvent.SIGN_IN,
    WrongPassword: AuditEvent.SIGN_IN,
}

_encode = msgspec.json.Encoder().encode


def refusal_for(error: DomainError | StoreError) -> DomainError:
    """The refusal that a client gets: a failure of the store is `StorageUnavailable`."""
    return error if isinstance(error, DomainError) else StorageUnavailable.of(error)


def error_id_of(error: DomainError) -> str:
    """The id of a refusal, in its answer and in its line of the log: fresh, unless the refusal has its line already."""
    return error.error_id if isinstance(error, RateLimitExceeded) else new_id()


def note_refusal(refusals: Refusals, protocol: str, error: DomainError, **about: Any) -> None:
    """Log a refusal, unless its source has too many (reference 28.1).

    A used-up rate limit is logged where it is counted (broker/limits/meters.py).
    """
    if isinstance(error, RateLimitExceeded):
        return
    audited = _AUDITED.get(type(error))
    if audited is AuditEvent.SIGN_IN:
        event = "sign_in_refused"
    elif isinstance(error, Unauthorized):
        event = f"{protocol}_credentials_refused"
    else:
        event = f"{protocol}_rate_refused" if isinstance(error, TryLater) else f"{protocol}_refused"
    # The store's own text is for the log and the operator.
    reason = f"{error}: {error.reason}" if isinstance(error, StorageUnavailable) and error.reason else str(error)
    refusals.note(event, reason=reason, audited=audited, **about)


def device_text(error: DomainError) -> str:
    """The text of a refusal on MQTT and CoAP."""
    template = _DEVICE_TEXTS.get(type(error))
    return str(error) if template is None else template.format(**vars(error))


def rest_error_body(
    code: int | str, text: str, error_id: str, findings: tuple[Finding, ...] = (), more: Mapping[str, str] | None = None
) -> bytes:
    """The JSON body of a refused REST call or WebSocket handshake (reference 3.1)."""
    error: dict[str, Any] = {"code": code, "message": text, "id": error_id}
    if findings:
        error["errors"] = [[{"field": one.field, "messages": one.messages} for one in findings]]
    return _encode({"error": {**error, **(more or {})}})


def rest_refusal_body(error: DomainError, error_id: str, more: Mapping[str, str] | None = None) -> bytes:
    """The JSON body for `error` (reference 3.1). `more`: members that only some calls have."""
    findings = error.findings if isinstance(error, ValidationFailed) else ()
    return rest_error_body(error.code, str(error), error_id, findings, {**reason_members(error), **(more or {})})


def reason_members(error: DomainError) -> dict[str, str]:
    """The member of an error that says why the service is not available (reference 3.2)."""
    return {"reason": error.told} if isinstance(error, StorageUnavailable) and error.told else {}


def rest_refusal_headers(error: DomainError) -> dict[str, str]:
    """The headers that an answer with `error` needs (reference 3.1 and 21.1)."""
    headers = {"WWW-Authenticate": "Bearer"} if error.status == 401 else {}
    if isinstance(error, TryLater):
        headers["Retry-After"] = str(error.retry_seconds)
    if isinstance(error, EncodingNotTaken):
        headers["Accept-Encoding"] = "identity"  # RFC 9110, 15.5.16
    return headers


def rate_members(standing: Standing) -> dict[str, str]:
    """Headers of REST, members of an MQTT error: each as `minute/day` (reference 21.1)."""
    limit, remaining, reset = standing.limit, standing.remaining, standing.reset_seconds
    return {
        "X-Rate-Limit-Limit": f"{limit.minute}/{limit.day}",
        "X-Rate-Limit-Remaining": f"{remaining.minute}/{remaining.day}",
        "X-Rate-Limit-Reset": f"{reset.minute}/{reset.day}",
    }
