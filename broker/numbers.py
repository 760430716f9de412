"""Which numbers may come in as JSON: integers of at most 64 bits, and what a finite double holds (reference 1.3).

Python takes an integer of any length and the store does not; a number beyond a double is an error in one decoder and
infinity in another one. So a body is looked at once, before any of its members is read.
"""

import math
import re
from typing import Final

import msgspec
from msgspec import Raw

from broker.nesting import STRING

INT64: Final = range(-(2**63), 2**63)

#: What each number has that is out of range, and hardly any other: many digits, or an exponent of three.
_SUSPECT: Final = re.compile(rb"[0-9]{19}|[0-9][eE]\+?[0-9]{3}")
_NUMBER: Final = re.compile(rb"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_LONGEST_INTEGER: Final = 20
_object = msgspec.json.Decoder(dict[str, Raw]).decode
_array = msgspec.json.Decoder(list[Raw]).decode


def number_out_of_range(text: bytes) -> str | None:
    """The dotted path of a number that is out of range; None: there is none. The path of the whole text is empty.

    A text that is not JSON may have none: the decoder refuses it.
    """
    if _SUSPECT.search(text) is None:  # as in most bodies
        return None
    if all(_is_in_range(found) for found in _NUMBER.finditer(STRING.sub(b'""', text))):
        return None
    return _path(text)


def _is_in_range(found: re.Match[bytes]) -> bool:
    fraction, exponent = found.groups()
    if fraction is None and exponent is None:
        return len(found[0]) <= _LONGEST_INTEGER and int(found[0]) in INT64
    return math.isfinite(float(found[0]))


def _path(text: bytes) -> str | None:
    try:
        first = text.lstrip()[:1]
        members = _object(text) if first == b"{" else dict(enumerate(_array(text))) if first == b"[" else {}
    except msgspec.DecodeError:
        return None
    for name, raw in members.items():
        if (path := number_out_of_range(bytes(raw))) is not None:
            return f"{name}.{path}" if path else str(name)
    return "" if not members else None
