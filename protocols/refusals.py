"""Refusals as protocols share them: what devices on MQTT and CoAP are told, and the members of rate limits.

reference 16.4 names the device where REST names the organization.
"""

from typing import Final

from broker.errors import DomainError, PayloadTooLarge, ValidationFailed
from broker.limits.refusals import PlanLimitsNotSet, RateLimitExceeded, Standing
from config.rates import Rate


class PublishForbidden(DomainError):
    status = 403
    template = "You do not have publish permission to topic"


class SubscribeForbidden(DomainError):
    status = 403
    template = "You do not have subscribe permission to topic"


_DEVICE_TEXTS: Final[dict[type[DomainError], str]] = {
    PayloadTooLarge: "Plan quota exceeded for device {device_id}. Reason: Max payload Size limit",
    PlanLimitsNotSet: "Quota validation error for device {device_id}. Reason: Plan limits have not been set.",
    RateLimitExceeded: "DEVICE {window} rate limit exceeded",
    ValidationFailed: "Bad Request",
}


def device_text(error: DomainError) -> str:
    template = _DEVICE_TEXTS.get(type(error))
    return str(error) if template is None else template.format(**vars(error))


def rate_members(standing: Standing) -> dict[str, str]:
    """Headers of REST, members of an MQTT error: each as `minute/day` (reference 21.1)."""
    return {
        "X-Rate-Limit-Limit": _pair(standing.limit),
        "X-Rate-Limit-Remaining": _pair(standing.remaining),
        "X-Rate-Limit-Reset": _pair(standing.reset_seconds),
    }


def _pair(rate: Rate) -> str:
    return f"{rate.minute}/{rate.day}"
