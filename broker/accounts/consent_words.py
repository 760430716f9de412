"""Sentences of the consent screen: what an application may see and do (reference 4.7).

The permission screen, the page of a device code and the list of connected applications all say these.
"""

from collections.abc import Collection, Iterable, Iterator
from typing import Final

import msgspec

from broker.words import Words

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
#: Sentences by whether the application may read and may write; a page may say them in another language.
_EVERY_TYPE: Final = {
    (True, False): "See your devices of every type and their messages.",
    (True, True): "See and control your devices of every type with their messages, and add, change, share and delete"
    " them.",
    (False, True): "Control your devices of every type, and add, change, share and delete them.",
}
_ONE_TYPE: Final = {
    (True, False): "See your devices of the type {name} and their messages.",
    (True, True): "See and control your devices of the type {name} with their messages, and add, change, share and"
    " delete them.",
    (False, True): "Control your devices of the type {name}, and add, change, share and delete them.",
}
_OWN_TYPES: Final = (
    "See and control your devices of the types of {organization} ({types}) with their messages, and add, change, share"
    " and delete them."
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


def sentences(allowed: Iterable[Allowed], own: OwnTypes | None) -> list[Words]:
    """All permissions of the application as sentences; every application may see name and address of its users.

    `own` is None for the application of a trial, which gets only what was agreed.
    """
    found = [Words("See your name and e-mail address.")]
    for one in sorted(allowed, key=lambda one: _FIRST.get(one.target, len(_FIRST))):
        found += _of_permission(one)
    if own is not None:
        shown, others = list(own.names)[:_TYPES_SHOWN], len(own.names) - _TYPES_SHOWN
        names = ", ".join(shown)
        if not shown:
            types = Words("also later ones")
        elif others > 0:
            types = Words("{names}, {count} more and later ones", names=names, count=others)
        else:
            types = Words("{names}, and later ones", names=names)
        found.append(Words(_OWN_TYPES, organization=own.organization, types=types))
    return list(dict.fromkeys(found))


def _of_permission(one: Allowed) -> Iterator[Words]:
    if one.target == PROFILE:
        if one.write:
            yield Words(_WRITES_PROFILE)
    elif one.target == TRIALS:
        yield Words(
            "See, change, stop and delete your trials, invite people to them, and see the addresses of the participants"
            " and the secrets."
        )
    elif one.read or one.write:
        yield (
            Words(_EVERY_TYPE[one.read, one.write])
            if one.target == EVERY_TYPE
            else Words(_ONE_TYPE[one.read, one.write], name=one.name)
        )


def how_long(unused_days: int, *, works_alone: bool) -> Words:
    """How long an application keeps what it was given.

    `unused_days`: days without use until it needs another sign-in. `works_alone`: it gets tokens without the person.
    """
    if works_alone:
        return Words("It keeps this, also while you do not use it, until you end it.")
    return Words(
        "It keeps this for as long as you use it, until you end it. After {days} days without use it asks you to sign"
        " in again.",
        days=unused_days,
    )
