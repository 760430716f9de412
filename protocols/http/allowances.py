"""Headers about limits, on every counted answer (reference 21).

The guard counts calls that come with a token. Other requests are counted here, by address.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final

from quart import Response, request

from broker.accounts.tokens import Caller
from broker.devices.registry import Device
from broker.limits.meters import Channel, Meters
from broker.limits.quotas import QuotaStanding
from broker.limits.refusals import RateLimitExceeded
from broker.limits.room import LimitsRoom
from config.limits import MAX_DATA_BYTES
from protocols.http.answers import REST_ROOT, is_rest
from protocols.http.calls import Counted, RestCall
from protocols.http.request_context import RequestContext, current_request
from protocols.refusals import rate_members

#: Calls with a secret in their path (reference 16.8).
HOOKS: Final = "/hooks/"
_NAME: Final = re.compile(r"\\\{\w+\\\}")  # as `re.escape` leaves it
EXPOSED: Final = (
    "ETag, Request-Time, X-Rate-Limit-Limit, X-Rate-Limit-Remaining, X-Rate-Limit-Reset, Retry-After,"
    " x-quota-max-payload-size,"
    " x-quota-organization-limits, x-quota-organization-reset, x-quota-device-limits, x-quota-device-reset"
)


def charge_to(device: Device, *, by_day: Device | None = None) -> None:
    """Add the quotas of the device's organization, and the daily quota of `by_day`, to the headers of the answer.

    `by_day` is by default the same device.
    """
    current_request().charged = device, by_day


def count_further(meters: Meters, caller: Caller, messages: int) -> tuple[int, RateLimitExceeded | None]:
    """Count messages of the current request beside the first one, which is counted as its call.

    Returns how many of them there is room for, and the refusal of the others.
    """
    request = current_request()
    meter = meters.of(Channel.MESSAGES, caller)
    if meter is None:
        return messages, None
    for counted in range(messages):
        try:
            meter.count()
        except RateLimitExceeded as refusal:
            request.standing = refusal.standing
            return counted, refusal
    request.standing = meter.standing()
    return messages, None


class Allowances:
    def __init__(self, limits: LimitsRoom, by_address: re.Pattern[str]) -> None:
        """`by_address`: the paths as `paths_by_address` gives them."""
        self._addresses = limits.addresses
        self._by_address = by_address
        self._quotas = limits.charged

    def count_tokenless(self) -> None:
        """Count the current request of Quart's against its address, if it has no token to count against."""
        if request.method == "POST" and request.path.startswith(HOOKS):
            return  # the owner's rate counts, and a wrong secret against the address
        if request.method == "OPTIONS" or not is_rest() or self.are_of_address(request.path):
            self.count_address(current_request().address)

    def count_address(self, address: str) -> None:
        """Raises TooManyRequests."""
        self._addresses.count(address)

    def add_headers(self, answer: Response) -> None:
        if is_rest() and request.method != "OPTIONS" and "Access-Control-Allow-Origin" in answer.headers:
            answer.headers["Access-Control-Expose-Headers"] = EXPOSED
        answer.headers.update(self.standing(current_request()))

    def standing(self, request: RequestContext) -> Mapping[str, str]:
        """The headers about what is left to the caller of a request that has been answered."""
        standing = {} if request.standing is None else rate_members(request.standing)
        if self._quotas is not None and request.channel is Channel.MESSAGES:
            standing["x-quota-max-payload-size"] = str(MAX_DATA_BYTES)
            if request.charged is not None:
                standing |= _members(self._quotas.standing(*request.charged))
        return standing

    def are_of_address(self, path: str) -> bool:
        """Whether requests for this REST path count against the limit of their address."""
        return self._by_address.fullmatch(path) is not None


def paths_by_address(calls: Iterable[RestCall]) -> re.Pattern[str]:
    """The REST paths on which requests are counted by address, with any method.

    Where all calls below a first word are counted so, all requests below that word are, also those to unknown paths.
    """
    by_word: dict[str, set[Counted]] = {}
    for call in calls:
        by_word.setdefault(_first_word(call), set()).add(call.counted)
    patterns = {
        f"/{_first_word(call)}/.*"
        if call.path.count("/") > 1 and by_word[_first_word(call)] == {Counted.ADDRESS}
        else f"{_NAME.sub('[^/]+', re.escape(call.path))}/?"
        for call in calls
        if call.counted is Counted.ADDRESS
    }
    return re.compile(f"{re.escape(REST_ROOT)}(?:{'|'.join(sorted(patterns))})")


def _first_word(call: RestCall) -> str:
    return call.path.split("/")[1]


def _members(standing: QuotaStanding) -> dict[str, str]:
    ours, device = standing.organization, standing.device
    members = {
        "x-quota-organization-limits": f"{ours.used}/{ours.limit}",
        "x-quota-organization-reset": f"{ours.since_ms}/{ours.until_ms}",
    }
    if device is not None:
        members["x-quota-device-limits"] = f"{device.used}/{device.limit}"
        members["x-quota-device-reset"] = f"{device.since_ms}/{device.until_ms}"
    return members
