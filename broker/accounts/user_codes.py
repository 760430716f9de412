"""User codes of the limited-input flow: `XXXX-XXXX`, without characters that look alike (reference 1.1)."""

import re
import secrets
from typing import Final

ALPHABET: Final = "ABCDEFGHJKMNPQRSTUVWXYZ23456789"
_TYPED: Final = re.compile(r"([^-]{4})-?([^-]{4})", re.DOTALL)


def new_user_code() -> str:
    return "-".join("".join(secrets.choice(ALPHABET) for _ in range(4)) for _ in range(2))


def typed_user_code(text: str) -> str | None:
    """The code that a person typed, in the form that devices show; None for other texts. Only the dash is optional."""
    match = _TYPED.fullmatch(text)
    if match is None or not set(match[1] + match[2]) <= set(ALPHABET):
        return None
    return f"{match[1]}-{match[2]}"
