"""OMA TLV (LwM2M 1.0, 6.4.3): entries of type, identifier, length and value, nested by object instance and resource."""

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from broker.device_management.sessions import ResourcePath
from protocols.coap.lwm2m.formats.values import Collected, Scalar, UnreadablePayload, path_text
from protocols.coap.lwm2m.kinds import Kind

_OBJECT_INSTANCE, _RESOURCE_INSTANCE, _MULTIPLE_RESOURCE, _RESOURCE = range(4)
_INTEGER_BYTES: Final = (1, 2, 4, 8)
_FLOATS: Final = {4: ">f", 8: ">d"}


class _Entry(NamedTuple):
    kind: int
    identifier: int
    value: bytes


def _entries(encoded: bytes) -> Iterator[_Entry]:
    at, size = 0, len(encoded)
    while at < size:
        head = encoded[at]
        identifier_at = at + 1
        length_at = identifier_at + (2 if head & 0x20 else 1)
        length_bytes = head >> 3 & 3
        begin = length_at + length_bytes
        if begin > size:
            raise UnreadablePayload("ends within the head of a TLV entry")
        length = int.from_bytes(encoded[length_at:begin], "big") if length_bytes else head & 7
        at = begin + length
        if at > size:
            raise UnreadablePayload(f"has a TLV entry of {length} bytes, and {size - begin} follow")
        yield _Entry(head >> 6, int.from_bytes(encoded[identifier_at:length_at], "big"), encoded[begin:at])


def decode_tlv(payload: bytes, asked: ResourcePath, found: Collected) -> None:
    """Collect the values of an answer to a Read of `asked`. Raises Unreadable."""
    for entry in _entries(payload):
        if entry.kind == _OBJECT_INSTANCE:
            found.take_room()  # also for one without a value
            instance = (asked[0], entry.identifier)
            if len(asked) > 1 and instance != asked[:2]:
                raise UnreadablePayload(f"has {path_text(instance)}, and {path_text(asked)} was asked for")
            for inner in _entries(entry.value):
                _resource(inner, instance, found)
        elif entry.kind == _RESOURCE_INSTANCE and len(asked) > 2:
            # Some devices leave the resource out around the instances of one that was asked for.
            path = (*asked[:3], entry.identifier)
            found.add(path, _value(path, entry.value, found.kind_of(path)))
        else:
            # Of an object without its instances: only instance 0 can be meant.
            _resource(entry, asked[:2] if len(asked) > 1 else (asked[0], 0), found)


def _resource(entry: _Entry, instance: ResourcePath, found: Collected) -> None:
    path = (*instance, entry.identifier)
    if entry.kind == _RESOURCE:
        found.add(path, _value(path, entry.value, found.kind_of(path)))
    elif entry.kind == _MULTIPLE_RESOURCE:
        found.add_empty(path)
        for inner in _entries(entry.value):
            if inner.kind != _RESOURCE_INSTANCE:
                raise UnreadablePayload(f"has an entry at {path_text(path)} that is not a resource instance")
            found.add((*path, inner.identifier), _value(path, inner.value, found.kind_of(path)))
    else:
        raise UnreadablePayload(f"has a TLV entry of a wrong type at {path_text(path)}")


def _value(path: ResourcePath, encoded: bytes, kind: Kind | None) -> Scalar:
    match kind:
        case Kind.STRING:
            return _text(path, encoded)
        case Kind.INTEGER | Kind.UNSIGNED_INTEGER | Kind.TIME | Kind.BOOLEAN:
            if len(encoded) in _INTEGER_BYTES:
                return int.from_bytes(encoded, "big", signed=kind is not Kind.UNSIGNED_INTEGER)
            if not encoded:  # some devices send the number 0 without any byte
                return 0
            raise UnreadablePayload(f"has a number of {len(encoded)} bytes at {path_text(path)}")
        case Kind.FLOAT:
            return _float(path, encoded)
    return encoded  # of a resource of bytes, or of one that nothing describes: no byte says what it is


def _text(path: ResourcePath, encoded: bytes) -> str:
    try:
        return encoded.decode()
    except UnicodeDecodeError:
        raise UnreadablePayload(f"has text at {path_text(path)} that is not UTF-8") from None


def _float(path: ResourcePath, encoded: bytes) -> float:
    if len(encoded) in _FLOATS:
        found: float = struct.unpack(_FLOATS[len(encoded)], encoded)[0]
        return found
    if len(encoded) in _INTEGER_BYTES:
        return int.from_bytes(encoded, "big", signed=True)
    raise UnreadablePayload(f"has a number of {len(encoded)} bytes at {path_text(path)}")
