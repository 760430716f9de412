"""How deeply JSON may nest (reference 21.3), and how many values a body may have (reference 1.3).

The decoders recurse, and Python ends the recursion: 3.11 at 1,000 levels less the calls on the stack, 3.13 at 10,000.
`JSON_NESTING_MAX` is below both and is checked before decoding, so that every version refuses the same texts.
"""

from collections.abc import Mapping
from itertools import accumulate
from typing import Any, Final

import msgspec

from config.limits import BODY_VALUES_MAX, JSON_NESTING_MAX

#: All that opens is one, and all that closes.
_BRACKETS: Final = bytes.maketrans(b"{}", b"[]")
_OTHERS: Final = bytes(set(range(256)) - set(b"[]{}"))
_STEPS: Final = {ord("["): 1, ord("]"): -1}
_FEW: Final = 4_096
_PASSES: Final = 8


def without_texts(json: bytes) -> bytes:
    """JSON with all its strings empty, at the speed of the memory: the loop waits while a body of 1 MiB is looked at.

    A string without its closing quotation mark ends with the text, as for the decoder.
    """
    return _without_texts(_without_escapes(json))


def _without_escapes(json: bytes) -> bytes:
    return json.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in json else json


def _without_texts(json: bytes) -> bytes:
    return b'""'.join(json.split(b'"')[::2])


def has_too_many_values(body: bytes) -> bool:
    """Whether JSON has more than `BODY_VALUES_MAX` values. One call of a decoder makes them all, and holds the
    interpreter lock even in a thread: 500,000 arrays take more than a second.

    Each is counted by the comma or the bracket before it, so a text that is not JSON may have too many.
    """
    if len(body) <= 2 * BODY_VALUES_MAX:
        return False
    body = _without_escapes(body)
    if body.count(b'"') > 4 * BODY_VALUES_MAX:  # the names are texts, too
        return True
    bare = _without_texts(body)
    return sum(map(bare.count, (b",", b"[", b"{"))) > BODY_VALUES_MAX


class NestedTooDeeplyError(msgspec.DecodeError):
    """More than `JSON_NESTING_MAX` levels of arrays and objects."""

    def __init__(self) -> None:
        super().__init__(f"more than {JSON_NESTING_MAX} levels of arrays and objects")


def check_nesting(text: bytes | str) -> None:
    """Look at a text before it is decoded as JSON. A text that is not JSON may pass: the decoder refuses it.

    Raises NestedTooDeeplyError.
    """
    if len(text) <= JSON_NESTING_MAX:  # as most messages are
        return
    content = text.encode(errors="replace") if isinstance(text, str) else text
    if content.count(b"[") + content.count(b"{") <= JSON_NESTING_MAX:
        return
    brackets, levels = without_texts(content).translate(_BRACKETS, _OTHERS), 0
    # Each pass takes the innermost pairs away, and with them one level.
    while len(brackets) > _FEW and levels < _PASSES and b"[]" in brackets:
        brackets, levels = brackets.replace(b"[]", b""), levels + 1
    if levels + max(accumulate(map(_STEPS.__getitem__, brackets)), default=0) > JSON_NESTING_MAX:
        raise NestedTooDeeplyError


def check_value_nesting(value: object) -> None:
    """Check the nesting of a value that is decoded already. Raises NestedTooDeeplyError."""
    level = [value]
    for _ in range(JSON_NESTING_MAX + 1):
        containers = [item for item in level if isinstance(item, Mapping | list | tuple)]
        if not containers:
            return
        level = [child for item in containers for child in (item.values() if isinstance(item, Mapping) else item)]
    raise NestedTooDeeplyError


def without_nulls(value: Any) -> Any:
    """A decoded document without its null members, for TOML, which has no null. A null member is an absent one."""
    if isinstance(value, dict):
        return {name: without_nulls(inner) for name, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [without_nulls(inner) for inner in value]
    return value
