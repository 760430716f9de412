"""Generated user names (reference 5.1)."""

import re
from typing import Final

from storage.database import Transaction

_SHORTEST: Final = 5
_LONGEST: Final = 36


def free_user_name(tx: Transaction, email: str) -> str:
    """The local part of the e-mail address, with a number if it is too short or taken."""
    stem = re.sub(r"[^a-z0-9_.-]", "_", email.partition("@")[0].lower())
    name, number = stem[:_LONGEST], 0
    while len(name) < _SHORTEST or tx.accounts.user_named(name) is not None:
        number += 1
        digits = str(number).zfill(_SHORTEST - len(stem))
        name = stem[: _LONGEST - len(digits)] + digits
    return name
