"""Every permission has a sentence, the same on the permission screen and among the connected applications (4.7)."""

from itertools import chain, combinations
from typing import Final

import pytest

from broker.accounts.applications import Method
from broker.accounts.consent import NOT_TYPES
from broker.accounts.consent_words import Allowed, OwnTypes, how_long, sentences
from broker.accounts.tokens import Caller, TokenKind
from tests.broker.accounts.oauth_world import THEIR_TYPE, WEB, OAuthWorld
from tests.factories import LIGHT_TYPE
from tests.rows import each_row

#: The names of reference 4.1, with their older spellings.
NAMES: Final = ("READ", "WRITE", "DEVICE_READ", "DEVICE_WRITE", "PROFILE_READ", "PROFILE_WRITE")
TARGETS: Final = (THEIR_TYPE, LIGHT_TYPE, *sorted(NOT_TYPES))
EVERY_REQUEST: Final = [
    (target, names)
    for target in TARGETS
    for names in chain.from_iterable(combinations(NAMES, count) for count in (1, 2))
    if not any(name.startswith("PROFILE" if target != "profile" else "DEVICE") for name in names)
]
NAME_AND_ADDRESS: Final = "See your name and e-mail address."
OWN: Final = (
    "See and control your devices of the types of Acme (Smart Light, and later ones) with their messages, and add,"
    " change, share and delete them."
)


def test_each_permission_says_something_of_its_own() -> None:
    seen: dict[tuple[str, ...], Allowed] = {}
    nothing = sentences([], None)
    for target in (THEIR_TYPE, *sorted(NOT_TYPES)):
        for read, write in ((True, False), (False, True), (True, True)):
            allowed = Allowed(target, "Lock", read, write)
            said = tuple(one for one in sentences([allowed], None) if one not in nothing)
            if target == "profile" and not write:
                assert said == ()  # every application may read it
                continue
            assert said, allowed
            assert all(one.endswith(".") and one[0].isupper() for one in said)
            if target not in {"profile", "trials"}:  # there a right to change is all of it
                assert said not in seen, (allowed, seen[said])
            seen[said] = allowed
    assert nothing == [NAME_AND_ADDRESS]
    own = OwnTypes("Acme", ["Light", "Heater", "Lock"])
    assert "of the types of Acme (Light, Heater, Lock, and later ones) with" in sentences([], own)[-1]
    many = OwnTypes("Acme", [f"Type {number}" for number in range(10)])
    assert "Type 6, Type 7, 2 more and later ones)" in sentences([], many)[-1]
    assert "of the types of Acme (also later ones) with" in sentences([], OwnTypes("Acme", []))[-1]


@each_row(("target", "names"), EVERY_REQUEST)
async def test_what_a_person_agreed_to_is_what_the_list_says(
    oauth: OAuthWorld, target: str, names: tuple[str, ...]
) -> None:
    authorize = oauth.services.accounts.authorize
    await oauth.ask_for(WEB, [{"device_type": target, "permissions": list(names)}])
    asked = await oauth.read(client_id=WEB, response_type="code", prompt="consent")
    screen = await authorize.consent_needed(asked, oauth.ada.key)
    assert screen is not None
    assert screen.sentences[0] == NAME_AND_ADDRESS
    assert screen.sentences[-1] == OWN
    await authorize.allow(asked, oauth.ada.key, agreed=screen)
    caller = Caller(
        kind=TokenKind.USER, token=b"", expires_on=None, user=oauth.ada.key, application=asked.application.key
    )
    found = await oauth.services.accounts.granted.of(caller, oauth.ada.key)
    (granted,) = [one for one in found if one.key == asked.application.key]
    assert granted.sentences == screen.sentences
    await oauth.services.accounts.granted.revoke(oauth.ada.key, granted.key)  # so that the next row starts without it
    assert granted.how_long == how_long(28, works_alone=asked.application.allows(Method.CLIENT_CREDENTIALS))


@pytest.mark.parametrize(("alone", "words"), [(False, "After 28 days without use"), (True, "while you do not use it")])
def test_how_long_it_may(alone: bool, words: str) -> None:
    assert words in how_long(28, works_alone=alone)
