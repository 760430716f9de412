"""Time zones by their names in the tz database."""

import re
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

_ZONE: Final = re.compile(r"[A-Za-z][A-Za-z0-9_+-]{0,31}(?:/[A-Za-z0-9_+-]{1,32}){0,2}")


@lru_cache(maxsize=256)
def zone_named(name: str) -> ZoneInfo:
    """Raises ValueError: there is no such zone."""
    if _ZONE.fullmatch(name) is None:
        raise ValueError(name)
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError) as error:  # a folder of the database is no zone, either
        raise ValueError(name) from error
