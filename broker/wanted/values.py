"""Wanted values: read and checked by the Manifest, compared with what a device reports, and made one document."""

import json
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Any, Final

import msgspec

from broker.device_types.manifest import Field, Manifest
from broker.device_types.manifest_parser import MAX_LEVELS
from broker.device_types.normalize import normalized_value
from broker.errors import BadRequest, Finding, ValidationFailed, invalid, too_long
from broker.nesting import check_nesting
from config.limits import MAX_DATA_BYTES, WANTED_FIELDS_MAX
from storage.wanted import WantedRecord

NOT_DECLARED: Final = invalid("is no field of the Manifest")
NOT_SETTABLE: Final = invalid("the field is not settable by its Manifest")
NO_OBJECT: Final = invalid("must be an object")

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder().decode
_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_NULL: Final = b"null"


class WantedState(StrEnum):
    """`waiting`: the device was not given it. `sent`: it was, and has not reported it. The others are ends."""

    WAITING = "waiting"
    SENT = "sent"
    REACHED = "reached"
    EXPIRED = "expired"
    REFUSED = "refused"


#: Values by dotted path; None withdraws what is wanted of the field.
Given = Mapping[str, tuple[Field, Any] | None]


def read_wanted(data: bytes, manifest: Manifest, path: str = "data") -> Given:
    """The wanted values in a JSON object. Raises ValidationFailed with everything that the Manifest refuses.

    A value is converted as those of messages are; all of it must convert.
    """
    findings = list[Finding]()
    found = dict[str, tuple[Field, Any] | None]()
    try:
        check_nesting(data)
        leaves = dict(_leaves(data, manifest, ""))
    except ValueError:
        raise ValidationFailed.of(path, NO_OBJECT) from None
    except BadRequest:
        raise ValidationFailed.of(path, NO_OBJECT) from None
    if not 1 <= len(leaves) <= WANTED_FIELDS_MAX:
        raise ValidationFailed.of(path, too_long(WANTED_FIELDS_MAX) if leaves else invalid("names no field"))
    for name, value in leaves.items():
        field = manifest.field_at(name)
        at = f"{path}.{name}"
        if value == _NULL:
            found[name] = None
        elif field is None:
            findings.append(Finding(at, (NOT_DECLARED,)))
        elif not field.settable:
            findings.append(Finding(at, (NOT_SETTABLE,)))
        elif (converted := normalized_value(field, value)) is None:
            kind = f"a list of {field.value_class}" if field.is_collection else field.value_class
            findings.append(Finding(at, (invalid(f"must be {kind}"),)))
        else:
            found[name] = field, converted
    if findings:
        raise ValidationFailed(tuple(findings))
    if len(wanted_document(found)) > MAX_DATA_BYTES:
        raise ValidationFailed.of(path, too_long(MAX_DATA_BYTES))
    return found


def _leaves(data: bytes, manifest: Manifest, prefix: str, level: int = 1) -> Iterator[tuple[str, bytes]]:
    """The members by dotted path, as JSON. An object is looked into, as deep as a Manifest has groups."""
    members = _members(data)
    if len(members) > WANTED_FIELDS_MAX:
        raise ValidationFailed.of("data", too_long(WANTED_FIELDS_MAX))
    for name, raw in members.items():
        path, value = prefix + name, bytes(raw).strip()
        is_group = value[:1] == b"{" and manifest.field_at(path) is None and value != b"{}"
        if is_group and level <= MAX_LEVELS:
            yield from _leaves(value, manifest, f"{path}.", level + 1)
        else:
            yield path, value


def wanted_document(given: Given) -> bytes:
    """`{"data":{…}}` of values by dotted path, groups nested."""
    return _document({path: one[1] for path, one in given.items() if one is not None})


def document_of(records: Iterable[WantedRecord]) -> bytes:
    """The open values as the device gets them, in the order of the fields' paths."""
    return _document({record.field: _decode(record.value) for record in records})


def _document(values: Mapping[str, Any]) -> bytes:
    tree: dict[str, Any] = {}
    for path in sorted(values):
        *groups, name = path.split(".")
        group = tree
        for one in groups:
            group = group.setdefault(one, {})
        group[name] = values[path]
    return _encode({"data": tree})


def json_of(value: object) -> str:
    return _encode(value).decode()


def is_reached(reported: object, wanted: object, tolerance: float | None) -> bool:
    """Whether a report is the wanted value: equal, or a number that differs by at most the field's tolerance."""
    if isinstance(wanted, bool) or isinstance(reported, bool):
        return reported is wanted
    if isinstance(wanted, int | float) and isinstance(reported, int | float) and tolerance:
        return abs(reported - wanted) <= tolerance
    return reported == wanted


def shortly(value: object) -> str:
    """A value in a sentence."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:59]}…"


NOTHING: Final = document_of(())
