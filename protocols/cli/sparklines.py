"""Numbers as a line of bars, and times as text."""

from collections.abc import Sequence
from datetime import UTC, datetime

_BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float | None]) -> str:
    """A bar for each value, scaled from the lowest to the highest value; a space for None."""
    known = [value for value in values if value is not None]
    if not known:
        return ""
    lowest, highest = min(known), max(known)
    step = (highest - lowest) / (len(_BARS) - 1) or 1.0
    return "".join(" " if value is None else _BARS[round((value - lowest) / step)] for value in values)


def time_text(ts: int) -> str:
    """A time in ms as text, in UTC."""
    return datetime.fromtimestamp(ts / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
