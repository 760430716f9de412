"""One rule for the names of all things (reference 6.1): what it takes, and that every way of naming follows it."""

from collections.abc import Callable
from typing import Any, Final

import msgspec
import pytest

from broker.accounts.sign_up import check_full_name
from broker.devices.inventory import name_findings
from broker.errors import Finding, ValidationFailed
from broker.names import name_problem, plain_name_problem
from broker.provisioning import forms
from broker.scenes.reading import read_scene
from protocols.http.reading import members
from protocols.http.rest.nouns import NOUNS
from protocols.http.rest.rule_shapes import NewRuleBody

Refuses = Callable[[str], bool]
#: Persian, Devanagari with a joiner, Arabic with a direction mark, a family, a no-break space, a soft hyphen.
TAKEN: Final = (
    "خانه\u200cی من",
    "क्\u200dष lamp",
    "\u200fمصباح",
    "lamp \U0001f468\u200d\U0001f469\u200d\U0001f467",
    "Room\u00a012",
    "Donau\u00addampf",
    "é",
)
REFUSED: Final = ("   ", "\u200d", "\u00a0\u200f ", "\u2028", "a\nb", "a\x00", "\x7f", "a\u0085b")
MARKUP: Final = tuple(f"a{one}b" for one in "<>&'\"")


def test_only_markup_control_characters_and_blank_names_are_refused() -> None:
    assert [name_problem(one) for one in (*TAKEN, *MARKUP)] == [None] * (len(TAKEN) + len(MARKUP))
    assert [plain_name_problem(one) for one in TAKEN] == [None] * len(TAKEN)
    assert all(plain_name_problem(one) == "must not contain any of \" & ' < >" for one in MARKUP)
    problems = {"must not be blank", "must not contain control characters"}
    assert {name_problem(one) for one in REFUSED} == {plain_name_problem(one) for one in REFUSED} == problems
    assert name_problem("\ud800") == "must not contain control characters"  # no text in UTF-8


def body_of(call: str) -> type[msgspec.Struct]:
    (kind,) = (one.body for noun in NOUNS for one in noun.declared() if str(one) == call)
    assert isinstance(kind, type)
    assert issubclass(kind, msgspec.Struct)
    return kind


def of_body(kind: type[msgspec.Struct], **more: Any) -> Refuses:
    def refuses(name: str) -> bool:
        try:
            members(msgspec.json.encode({"name": name, **more}), kind)
        except ValidationFailed as error:
            return any(one.field == "name" for one in error.findings)
        return False

    return refuses


def of_scene(name: str) -> bool:
    findings: list[Finding] = []
    read_scene({"name": name}, findings, is_new=False)
    return bool(findings)


#: Each way to name something: whether it refuses a name, and whether it refuses markup.
WAYS: Final[dict[str, tuple[Refuses, bool]]] = {
    "a device": (lambda name: bool(name_findings(name)), True),
    "a provisioned device": (lambda name: forms.NAME.check(name) is not None, True),
    "a provisioned rule or scene": (lambda name: forms.PLAIN_NAME.check(name) is not None, False),
    "a provisioned person": (lambda name: forms.FULL_NAME.check(name) is not None, False),
    "a person": (lambda name: check_full_name(name) is not None, False),
    "an application": (of_body(body_of("POST /developer/organizations/{oid}/applications")), True),
    "a device type": (
        of_body(body_of("POST /developer/organizations/{oid}/devicetypes"), uniqueName="acme.light"),
        True,
    ),
    "a rule": (of_body(NewRuleBody, rule={}), False),
    "a scene": (of_scene, False),
    "a trial": (of_body(body_of("POST /trials")), False),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_naming_follows_the_rule(way: str) -> None:
    refuses, refuses_markup = WAYS[way]
    assert [one for one in TAKEN if refuses(one)] == []
    assert [one for one in REFUSED if not refuses(one)] == []
    assert [refuses(one) for one in MARKUP] == [refuses_markup] * len(MARKUP)
