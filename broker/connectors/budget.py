"""How often connectors may call third parties for one user (reference 21.1)."""

from broker.limits.meters import Meters
from config.limits import CONNECTOR_CALLS_PER_DAY, CONNECTOR_CALLS_PER_MINUTE
from config.rates import Rate
from storage.keys import DeviceTypeKey, UserKey

_USUAL = Rate(CONNECTOR_CALLS_PER_MINUTE, CONNECTOR_CALLS_PER_DAY)


class CallBudget:
    """Counts the calls for each user; connectors of a type that has its own limits are counted separately."""

    def __init__(self, meters: Meters) -> None:
        self._meters = meters

    def take(self, user: UserKey, device_type: DeviceTypeKey, own_rate: Rate | None) -> None:
        """Count one call for the user. Raises RateLimitExceeded; the call is not counted then."""
        if not self._meters.are_on:
            return
        name = f"connectors user {user}"
        if own_rate is None:
            self._meters.named(name, _USUAL).count()
        else:
            self._meters.named(f"{name} type {device_type}", own_rate).count()
