"""The latest refusals by what, where and from where, for the operator's page (reference 27.21). In memory only."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

SOURCES: Final = 500
_REASON_CHARACTERS: Final = 200


@dataclass(slots=True)
class Refused:
    """How often one source was refused for one reason. Times are milliseconds since the epoch."""

    event: str
    listener: str
    source: str  # an address, or the caller who has proven who it is
    account: str  # whom the peer named, if there is such an account or device
    reason: str
    first_on: int
    last_on: int
    times: int = 0


class Tally:
    """The latest 500 of them; what was refused again is not forgotten before what was not."""

    def __init__(self) -> None:
        self._found: OrderedDict[tuple[str, str, str, str], Refused] = OrderedDict()

    def add(self, event: str, listener: str, source: str, account: str, reason: str, now_ms: int) -> None:
        key = event, listener, source, reason
        found = self._found.get(key)
        if found is None:
            text = reason[:_REASON_CHARACTERS]
            found = self._found[key] = Refused(event, listener, source, account, text, now_ms, now_ms)
            if len(self._found) > SOURCES:
                self._found.popitem(last=False)
        else:
            self._found.move_to_end(key)
        found.last_on, found.times = now_ms, found.times + 1
        found.account = account or found.account

    def latest(self) -> list[Refused]:
        """The latest first."""
        return list(reversed(self._found.values()))
