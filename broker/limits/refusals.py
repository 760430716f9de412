"""The refusals of rate limits and quotas."""

from dataclasses import dataclass, field
from typing import Literal

import msgspec

from broker.errors import DomainError, TryLater
from broker.ids import new_id
from config.rates import Rate


class Standing(msgspec.Struct, frozen=True):
    """A caller's limits and remaining calls, each for the minute and for the day.

    `reset_seconds` is in epoch seconds: when the oldest call leaves the minute, and the next 00:00 UTC
    (reference 21.1).
    """

    limit: Rate
    remaining: Rate
    reset_seconds: Rate


@dataclass(eq=False)
class RateLimitExceeded(TryLater):
    """One call too many in a minute or on a day. The call is not counted.

    `error_id` is in the answer and in the log's line, which the meter writes.
    """

    template = "{window} rate limit exceeded"
    window: Literal["MINUTE", "DAILY"]
    standing: Standing
    error_id: str = field(default_factory=new_id)


@dataclass(eq=False)
class TooManyRequests(TryLater):
    """Too many requests from one address, on paths where no token is counted."""

    template = "MINUTE rate limit exceeded"


@dataclass(eq=False)
class MonthlyQuotaExceeded(TryLater):
    template = "Plan quota exceeded for organization {organization_id}. Reason: Monthly message limit"
    organization_id: str


@dataclass(eq=False)
class DailyQuotaExceeded(TryLater):
    template = "Plan quota exceeded for device {device_id}. Reason: Daily message limit."
    device_id: str


@dataclass(eq=False)
class PlanLimitsNotSet(DomainError):
    """The limits of the organization's plan are unknown."""

    status = 400
    template = "Quota validation error for organization {organization_id}. Reason: Plan limits have not been set"
    organization_id: str
    device_id: str
