"""Sentences of the consent screen: what an application may see and do (reference 4.7).

The permission screen, the page of a device code and the list of connected applications all say these.
"""

from collections.abc import Collection, Iterable, Iterator
from typing import Final

import msgspec

EVERY_TYPE: Final = "*"
PROFILE: Final = "profile"
TRIALS: Final = "trials"

_TYPES_SHOWN: Final = 8
#: These come first.
_FIRST: Final = {PROFILE: 0, TRIALS: 1}
_WRITES_PROFILE: Final = (
    "Change your name, see where you are signed in and what happened to your account, end your sign-ins and the access"
    " of other applications, and delete your account with all that is yours."
)


class Allowed(msgspec.Struct, frozen=True):
    """One permission. `target`: the id of a device type, `*`, `profile` or `trials`; `name`: that of the type."""

    target: str
    name: str
    read: bool
    write: bool


class OwnTypes(msgspec.Struct, frozen=True):
    """The device types of an application's own organization, which every sign-in gives it; `names`: the published."""

    organization: str
    names: Collection[str]


def sentences(allowed: Iterable[Allowed], own: OwnTypes | None) -> list[str]:
    """All permissions of the application as sentences; every application may see name and address of its users.

    `own` is None for the application of a trial, which gets only what was agreed.
    """
    found = ["See your name and e-mail address."]
    for one in sorted(allowed, key=lambda one: _FIRST.get(one.target, len(_FIRST))):
        found += _of_permission(one)
    if own is not None:
        shown, others = list(own.names)[:_TYPES_SHOWN], len(own.names) - _TYPES_SHOWN
        more = f"{others} more and later ones" if others > 0 else "and later ones"
        types = ", ".join((*shown, more)) if shown else "also later ones"
        found.append(_may(f"of the types of {own.organization} ({types})", read=True, write=True))
    return list(dict.fromkeys(found))


def _of_permission(one: Allowed) -> Iterator[str]:
    if one.target == PROFILE:
        if one.write:
            yield _WRITES_PROFILE
    elif one.target == TRIALS:
        yield (
            "See, change, stop and delete your trials, invite people to them, and see the addresses of the participants"
            " and the secrets."
        )
    elif one.read or one.write:
        of = "of every type" if one.target == EVERY_TYPE else f"of the type {one.name}"
        yield _may(of, read=one.read, write=one.write)


def _may(which: str, *, read: bool, write: bool) -> str:
    """`which` devices: of a type, or of all."""
    if not write:
        return f"See your devices {which} and their messages."
    sees, messages = ("See and control", " with their messages") if read else ("Control", "")
    return f"{sees} your devices {which}{messages}, and add, change, share and delete them."


def how_long(unused_days: int, *, works_alone: bool) -> str:
    """How long an application keeps what it was given.

    `unused_days`: days without use until it needs another sign-in. `works_alone`: it gets tokens without the person.
    """
    if works_alone:
        return "It keeps this, also while you do not use it, until you end it."
    return (
        "It keeps this for as long as you use it, until you end it."
        f" After {unused_days} days without use it asks you to sign in again."
    )
