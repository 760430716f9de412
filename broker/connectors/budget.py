"""How often connectors may call third parties for one user (reference 21.1)."""

from broker.limits.meters import Meters
from config.limits import CONNECTOR_CALLS_PER_DAY, CONNECTOR_CALLS_PER_MINUTE
from config.rates import Rate

_USUAL = Rate(CONNECTOR_CALLS_PER_MINUTE, CONNECTOR_CALLS_PER_DAY)


class CallBudget:
    """All of a user's connectors share one count, except for those whose type has limits of its own."""

    def __init__(self, meters: Meters) -> None:
        self._meters = meters

    def take(self, user: int, device_type: int, own_rate: Rate | None) -> None:
        """Count one call for the user. Raises RateLimitExceeded; then it is not counted."""
        if not self._meters.are_on:
            return
        name = f"connectors user {user}"
        if own_rate is None:
            self._meters.named(name, _USUAL).count()
        else:
            self._meters.named(f"{name} type {device_type}", own_rate).count()
