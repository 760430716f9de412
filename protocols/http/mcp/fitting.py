"""Cuts an answer to the size that an assistant gets, and says how to go on (reference 29.4)."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from config.limits import MCP_ANSWER_BYTES
from protocols.http.mcp.tools import GoesOn, ToolStep

#: For `isComplete`, `now`, `goOn` and the like: cursors and ids have bounds.
_ENVELOPE_BYTES: Final = 4 * 1024
ROOM: Final = MCP_ANSWER_BYTES - _ENVELOPE_BYTES

_encode = msgspec.json.Encoder().encode


class Fitted(msgspec.Struct, frozen=True):
    """`answer`: None when not even a part of it fits. `kept`: entries of a list that was cut; None: it was not cut."""

    answer: dict[str, Any] | None
    kept: int | None = None
    #: The first entry that was cut.
    next_entry: Any = None


def fit_answer(answer: dict[str, Any], step: ToolStep, room: int = ROOM) -> Fitted:
    """Cut the list of an answer, so that the answer has at most `room` bytes as JSON."""
    size = len(_encode(answer))
    if size <= room:
        return Fitted(answer)
    entries = at(answer, step.items) if step.items else None
    if not isinstance(entries, list) or not entries:
        return Fitted(None)
    sizes = [len(_encode(entry)) + 1 for entry in entries]
    left, kept = room - (size - sum(sizes)), 0
    while kept < len(sizes) and sizes[kept] <= left:
        left -= sizes[kept]
        kept += 1
    if kept == 0:
        return Fitted(None)
    cut = _replaced(answer, step.items, entries[:kept])
    for count in ("count", "size"):  # how many entries there are in this answer
        if step.goes_on is not GoesOn.BY_CURSOR and cut.get(count) == len(entries):
            cut[count] = kept
    return Fitted(cut, kept, entries[kept])


def changes(
    arguments: Mapping[str, Any], answer: Mapping[str, Any], step: ToolStep, fitted: Fitted
) -> dict[str, Any] | None:
    """The arguments that change for the call that goes on behind this answer; None: there is no such call."""
    match step.goes_on:
        case GoesOn.BY_OFFSET:
            given = answer.get("count", 0) if fitted.kept is None else fitted.kept
            behind = answer.get("offset", 0) + given
            return {"offset": behind} if given and behind < answer.get("total", 0) else None
        case GoesOn.BY_CURSOR:
            return {"offset": answer["next"]} if "next" in answer else None
        case GoesOn.BY_IDS if fitted.kept is not None:
            ids = [one.strip() for one in str(arguments.get("sdids", "")).split(",") if one.strip()]
            return {"sdids": ",".join(list(dict.fromkeys(ids))[fitted.kept :])}
        case GoesOn.BY_TIME if "endDate" in arguments:
            until = fitted.next_entry.get("ts") if fitted.next_entry else at(answer, ("data", "until"))
            # A call that began here and came no further would go on for ever.
            return {"startDate": until} if until and until > arguments.get("startDate", 0) else None
    return None


def is_part(answer: Mapping[str, Any], step: ToolStep) -> bool:
    """Whether the REST call itself has answered a part."""
    if step.goes_on is GoesOn.BY_OFFSET:
        count = answer.get("count", 0)
        return bool(count) and answer.get("offset", 0) + count < answer.get("total", 0)
    if step.goes_on is GoesOn.BY_CURSOR:
        return "next" in answer
    return at(answer, ("data", "isComplete")) is False


def at(value: Any, path: tuple[str, ...]) -> Any:
    """The value at this path; None where there is none."""
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _replaced(answer: Mapping[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    name, *rest = path
    return {**answer, name: _replaced(answer[name], tuple(rest), value) if rest else value}
