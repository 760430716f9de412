"""Whether the kernel keeps the clock right by other clocks (adjtimex(2)), as chrony, ntpd and systemd-timesyncd say."""

import ctypes
from typing import Final

#: The kernel's clock is not synchronised.
_TIME_ERROR: Final = 5
#: More than `struct timex` has on any platform; all members 0 ask without changing anything.
_BYTES: Final = 512


def is_clock_synchronized() -> bool:
    """Whether the clock is synchronized; False also if the system cannot tell."""
    try:
        asked = ctypes.CDLL(None, use_errno=True).adjtimex
    except (OSError, AttributeError):
        return False
    state: int = asked(ctypes.create_string_buffer(_BYTES))
    return 0 <= state < _TIME_ERROR
