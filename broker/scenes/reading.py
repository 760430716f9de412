"""The members of a scene as a caller sends them (reference 12.5), and its findings as they are stored."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from broker.errors import REQUIRED, TEXT_ONLY, Finding, invalid, too_long
from broker.names import name_problem
from broker.scenes.actions import SceneAction, read_actions
from config.limits import NAME_MAX_CHARACTERS, SCENE_DESCRIPTION_MAX_CHARACTERS

_LONGEST: Final = {"name": NAME_MAX_CHARACTERS, "description": SCENE_DESCRIPTION_MAX_CHARACTERS}

_encode = msgspec.json.Encoder().encode


class SceneForm(msgspec.Struct, frozen=True):
    """The members that were sent; None: not sent. `text` is the JSON of the Actions as they were sent."""

    name: str | None = None
    description: str | None = None
    text: str | None = None
    actions: Sequence[SceneAction] = ()


def read_scene(members: Mapping[str, Any], findings: list[Finding], *, is_new: bool) -> SceneForm:
    """Read the members of a scene; null is an absent member. Problems are added to `findings`."""
    name = _text("name", members.get("name"), findings, required=is_new)
    description = _text("description", members.get("description"), findings, required=False)
    given = members.get("actions")
    if given is None and not is_new:
        return SceneForm(name, description)
    return SceneForm(name, description, _encode(given).decode(), read_actions(given, findings))


def _text(member: str, given: object, findings: list[Finding], *, required: bool) -> str | None:
    if given is None or (given == "" and member == "name"):
        if required or given is not None:
            findings.append(Finding(member, (REQUIRED,)))
    elif not isinstance(given, str):
        findings.append(Finding(member, (TEXT_ONLY,)))
    elif len(given) > _LONGEST[member]:
        findings.append(Finding(member, (too_long(_LONGEST[member]),)))
    elif member == "name" and (problem := name_problem(given)) is not None:
        findings.append(Finding(member, (invalid(problem),)))
    else:
        return given
    return None


def actions_in(text: str) -> list[SceneAction]:
    """The Actions of a stored scene."""
    return read_actions(msgspec.json.decode(text), [])


def encode_findings(findings: Sequence[Finding]) -> str:
    return _encode([[one.field, *one.messages] for one in findings]).decode()


def decode_findings(text: str) -> tuple[Finding, ...]:
    return tuple(
        Finding(field, tuple(messages)) for field, *messages in msgspec.json.decode(text, type=list[list[str]])
    )
