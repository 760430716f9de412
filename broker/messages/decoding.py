"""Rows of the message log as fields by dotted path."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from storage.records import MessageRow

decode = msgspec.json.Decoder(dict[str, Any]).decode

#: Rows, each with its fields by dotted path.
Decoded = Sequence[tuple[MessageRow, Mapping[str, Any]]]


def decoded(rows: Sequence[MessageRow]) -> Decoded:
    return [(row, flat(decode(row.data))) for row in rows]


def flat(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Every field of normalised data by its dotted path; a collection is one field."""
    for value in data.values():
        if type(value) is dict:
            return dict(_leaves(data, ""))
    return data  # no groups: the common case


def _leaves(group: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in group.items():
        if type(value) is dict:
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value
