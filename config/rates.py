"""Rates: the numbers of calls allowed in a sliding minute and on a UTC day."""

import re
from typing import NamedTuple

#: The largest limit for a minute: a meter holds eight bytes for every call of the last minute.
MOST_PER_MINUTE = 1_000_000
_TEXT = re.compile(r"([0-9]{1,15})/([0-9]{1,15})", re.ASCII)


class Rate(NamedTuple):
    minute: int
    day: int

    @classmethod
    def parse(cls, text: str) -> "Rate":
        """Parse `minute/day`, the form of the rate-limit headers. Raises ValueError with a text for the operator."""
        found = _TEXT.fullmatch(text)
        if found is None or not 1 <= int(found[1]) <= MOST_PER_MINUTE or int(found[2]) < 1:
            raise ValueError(f"expected minute/day like 100/1000, the first from 1 to {MOST_PER_MINUTE}, got {text!r}")
        return cls(int(found[1]), int(found[2]))
