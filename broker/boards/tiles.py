"""The tiles of a board, checked as they come."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from broker.errors import BOOLEAN_ONLY, REQUIRED, TEXT_ONLY, Finding, choice, invalid, too_long
from broker.ids import is_id
from broker.names import name_problem
from config.limits import BOARD_FIELD_MAX_CHARACTERS, BOARD_PARAMETERS_BYTES, BOARD_TILES_MAX, NAME_MAX_CHARACTERS

CHART, VALUE, ACTION, SCENE = KINDS = ("chart", "value", "action", "scene")
#: How far back a chart goes.
RANGES: Final = ("hour", "day", "month", "year")
#: Members of each kind besides `kind` and `title`; it may lack the optional ones.
_MEMBERS: Final[Mapping[str, tuple[str, ...]]] = {
    CHART: ("did", "field", "range", "wide"),
    VALUE: ("did", "field"),
    ACTION: ("did", "action", "parameters"),
    SCENE: ("sceneId",),
}
_OPTIONAL: Final = frozenset({"range", "wide", "parameters"})


class Tile(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One tile. Empty texts are members that its kind does not have."""

    kind: str
    title: str = ""
    did: str = ""
    field: str = ""
    range: str = ""
    wide: bool = False
    action: str = ""
    parameters: Mapping[str, Any] = {}
    scene_id: str = ""


def read_tiles(given: object, findings: list[Finding]) -> tuple[Tile, ...]:
    """The tiles of a body; problems are added to `findings`, by the path of the member."""
    if not isinstance(given, list):
        findings.append(Finding("tiles", (invalid("must be a list"),)))
        return ()
    if len(given) > BOARD_TILES_MAX:
        findings.append(Finding("tiles", (f"A board has at most {BOARD_TILES_MAX} tiles",)))
        return ()
    before = len(findings)
    found = [_tile(one, f"tiles.{at}", findings) for at, one in enumerate(given)]
    return tuple(one for one in found if one is not None) if len(findings) == before else ()


def tiles_in(text: str) -> tuple[Tile, ...]:
    """The tiles as the store has them."""
    return msgspec.json.decode(text, type=tuple[Tile, ...])


def _tile(given: object, path: str, findings: list[Finding]) -> Tile | None:
    if not isinstance(given, dict):
        findings.append(Finding(path, (invalid("must be an object"),)))
        return None
    kind = given.get("kind")
    if kind not in KINDS:
        findings.append(Finding(f"{path}.kind", (invalid(choice(KINDS)),)))
        return None
    members = _MEMBERS[kind]
    problems = {name: _problem(name, given.get(name)) for name in ("title", *members)}
    problems |= {
        name: invalid(f"a tile of this kind has no {name[:64]}") for name in given.keys() - {"kind", *problems}
    }
    told = [Finding(f"{path}.{name[:64]}", (problem,)) for name, problem in problems.items() if problem]
    findings += told
    if told:
        return None
    kept = {name: value for name in ("title", *members) if (value := given.get(name)) is not None}
    return msgspec.convert(kept | {"kind": kind}, Tile)


def _problem(name: str, value: object) -> str:
    """The problem with a member of a tile; empty without one."""
    if value is None:
        return "" if name in _OPTIONAL or name == "title" else REQUIRED
    match name:
        case "wide":
            return "" if isinstance(value, bool) else BOOLEAN_ONLY
        case "parameters":
            return _problem_of_parameters(value)
        case _ if not isinstance(value, str):
            return TEXT_ONLY
        case "did" | "sceneId":
            return "" if is_id(value) else invalid("must be an id")
        case "range":
            return "" if value in RANGES else invalid(choice(RANGES))
        case "title":
            return _problem_of_text(value, NAME_MAX_CHARACTERS)
        case _:
            return _problem_of_text(value, BOARD_FIELD_MAX_CHARACTERS) if value else REQUIRED


def _problem_of_text(value: str, longest: int) -> str:
    if len(value) > longest:
        return too_long(longest)
    problem = name_problem(value) if value else None
    return "" if problem is None else invalid(problem)


def _problem_of_parameters(value: object) -> str:
    if not isinstance(value, dict):
        return invalid("must be an object")
    try:
        size = len(msgspec.json.encode(value))
    except (TypeError, UnicodeEncodeError):
        return invalid("must be JSON")
    return "" if size <= BOARD_PARAMETERS_BYTES else invalid(f"has more than {BOARD_PARAMETERS_BYTES} bytes")
