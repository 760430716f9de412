"""Which numbers may come in as JSON: integers of at most 64 bits, and what a finite double holds (reference 1.3).

Python takes an integer of any length and the store does not; a number beyond a double is an error in one decoder and
infinity in another one. So a body is looked at once, before any of its members is read.
"""

import math
import re
from typing import Final

import msgspec
from msgspec import Raw

from broker.nesting import without_texts

INT64: Final = range(-(2**63), 2**63)

#: Each digit becomes a 0, each exponent an e, and all else but its plus sign a blank.
_KINDS: Final = bytes(
    ord("0") if chr(one).isdigit() and one < 128 else ord("e") if one in b"eE" else one if one == ord("+") else ord(" ")
    for one in range(256)
)
#: Texts in every number that is out of range, and in hardly any other: many digits, or an exponent of three.
_SUSPECT: Final = (b"0" * 19, b"0e000", b"0e+000")
_NUMBER: Final = re.compile(rb"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_LONGEST_INTEGER: Final = 20
_NAMED_BYTES: Final = 16 * 1024
_NAMED_LEVELS: Final = 32
_object = msgspec.json.Decoder(dict[str, Raw]).decode
_array = msgspec.json.Decoder(list[Raw]).decode


def number_out_of_range(text: bytes) -> str | None:
    """The dotted path of a number that is out of range; None: there is none. The path of the whole text is empty.

    A text that is not JSON may have none: the decoder refuses it. Of a member that is long, or nested deeply, the path
    ends with its name.
    """
    return _path(text, _NAMED_LEVELS) if _has_out_of_range(text) else None


def _has_out_of_range(text: bytes) -> bool:
    if not _is_suspect(text) or not _is_suspect(numbers := without_texts(text)):  # as in most bodies
        return False
    return not all(_is_in_range(found) for found in _NUMBER.finditer(numbers))


def _is_suspect(text: bytes) -> bool:
    kinds = text.translate(_KINDS)
    return any(one in kinds for one in _SUSPECT)


def _is_in_range(found: re.Match[bytes]) -> bool:
    fraction, exponent = found.groups()
    if fraction is None and exponent is None:
        return len(found[0]) <= _LONGEST_INTEGER and int(found[0]) in INT64
    return math.isfinite(float(found[0]))


def _path(text: bytes, levels: int) -> str | None:
    try:
        first = text.lstrip()[:1]
        members = _object(text) if first == b"{" else dict(enumerate(_array(text))) if first == b"[" else {}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    for name, raw in members.items():
        if _has_out_of_range(value := bytes(raw)):
            path = _path(value, levels - 1) if levels and len(value) <= _NAMED_BYTES else ""
            return f"{name}.{path}" if path else str(name)
    return "" if not members else None
