"""Passwords that everybody tries first: the 10,000 most common ones, from the list in zxcvbn (reference 4.2).

Only the list is loaded, with the first password that is set, and in a worker thread: the package itself would take
twice the time and the memory.
"""

from functools import cache
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from typing import Final

import trio

from broker.errors import Finding
from config.limits import COMMON_PASSWORDS, PASSWORD_MIN_CHARACTERS

TOO_COMMON: Final = Finding(
    "password", (f"This is one of the {COMMON_PASSWORDS:,} most common passwords. Please choose another one.",)
)


def is_common_password(password: str) -> bool:
    """Whether a password is common, without regard to case. Takes some tens of milliseconds the first time."""
    return password.lower() in _common_passwords()


async def common_password_finding(password: str) -> Finding | None:
    """The finding about a password that is too common; None for any other."""
    return TOO_COMMON if await trio.to_thread.run_sync(is_common_password, password) else None


@cache
def _common_passwords() -> frozenset[str]:
    """The common passwords that are long enough to be a password here."""
    package = find_spec("zxcvbn")
    places = None if package is None else package.submodule_search_locations
    spec = PathFinder.find_spec("zxcvbn.frequency_lists", places)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError("zxcvbn, which this program depends on, is not installed")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    first = module.FREQUENCY_LISTS["passwords"][:COMMON_PASSWORDS]
    return frozenset(one.lower() for one in first if len(one) >= PASSWORD_MIN_CHARACTERS)
