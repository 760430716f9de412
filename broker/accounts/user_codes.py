"""User codes of the limited-input flow: `XXXX-XXXX`, without characters that look alike (reference 1.1)."""

import re
import secrets
from typing import Final

ALPHABET: Final = "ABCDEFGHJKMNPQRSTUVWXYZ23456789"
_TYPED: Final = re.compile(rf"([{ALPHABET}]{{4}})-?([{ALPHABET}]{{4}})")


def new_user_code() -> str:
    return "-".join("".join(secrets.choice(ALPHABET) for _ in range(4)) for _ in range(2))


def typed_user_code(text: str) -> str | None:
    """The code that a person typed, in the form that devices show; None for other texts.

    Case, blanks and the dash do not matter.
    """
    typed = "".join(text.split())
    match = _TYPED.fullmatch(typed.upper()) if typed.isascii() else None  # other letters may become these
    return None if match is None else f"{match[1]}-{match[2]}"
