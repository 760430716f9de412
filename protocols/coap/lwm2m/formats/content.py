"""Answers of devices by their content-format, under the numbers of LwM2M 1.0, 1.1 and the drafts before."""

import base64
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import cbor2

from broker.device_management.sessions import Readings, ResourcePath, ResourceValue
from protocols.coap.lwm2m.formats import tlv
from protocols.coap.lwm2m.formats.records import cbor, decode_lwm2m_json, decode_senml_cbor, decode_senml_json
from protocols.coap.lwm2m.formats.values import Collected, Scalar, UnreadablePayload, from_base64, path_text
from protocols.coap.lwm2m.kinds import Kind, KindOf, kind_of
from protocols.coap.messages import CBOR, JSON, LINK_FORMAT, OCTETS, TEXT
from storage.keys import Milliseconds

SENML_JSON: Final = 110
SENML_CBOR: Final = 112
TLV: Final = 11_542
LWM2M_JSON: Final = 11_543
#: The numbers of the drafts of LwM2M 1.0, by the present ones.
OLD: Final[Mapping[int, int]] = {1541: TEXT, 1542: TLV, 1543: LWM2M_JSON, 1544: OCTETS}

#: The longest answer, Send or registration that is put together from blocks.
ANSWER_BYTES: Final = 64 * 1024
_RESOURCE_DEPTH: Final = 3
_CBOR_NAME: Final = 0  # label of the name (RFC 8428, 6)
_TRUE, _FALSE = ("1", "true"), ("0", "false")


def decode_content(
    format_: int | None, payload: bytes, asked: ResourcePath, now_ms: Milliseconds, kinds: KindOf = kind_of
) -> Readings:
    """The values of an answer to a Read of `asked`, of a notification, or of a Send.

    Args:
        format_: the content-format; None when the answer has none.
        payload: of the answer.
        asked: a resource, or an object instance; empty for any.
        now_ms: the time of arrival, to which relative times refer.
        kinds: what resources hold.

    Raises:
        Unreadable: the payload does not fit its format, or the format is unknown.
    """
    if len(payload) > ANSWER_BYTES:
        raise UnreadablePayload(f"has more than {ANSWER_BYTES} bytes")
    if format_ is None:
        format_ = TEXT if len(asked) >= _RESOURCE_DEPTH else TLV
    read = _READERS.get(OLD.get(format_, format_))
    if read is None:
        raise UnreadablePayload(f"has content-format {format_}, which is not one for values")
    found = Collected(asked, kinds, now_ms)
    read(payload, asked, found)
    return found.readings()


def says_types(format_: int | None, asked: ResourcePath) -> bool:
    """Whether values in this format say their types; those of TLV do not."""
    format_ = TLV if format_ is None and len(asked) < _RESOURCE_DEPTH else format_
    return format_ is None or OLD.get(format_, format_) != TLV


def _only_of_a_resource(asked: ResourcePath, format_: str) -> None:
    if len(asked) < _RESOURCE_DEPTH:
        raise UnreadablePayload(f"is {format_}, which cannot hold the values of {path_text(asked)}")


def _text(payload: bytes, asked: ResourcePath, found: Collected) -> None:
    _only_of_a_resource(asked, "text")
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        raise UnreadablePayload("is text that is not UTF-8") from None
    found.add(asked, _from_text(asked, text, found.kind_of(asked)))


def _from_text(path: ResourcePath, text: str, kind: Kind | None) -> Scalar:
    plain = text.strip().rstrip("\0")
    try:
        if kind in (Kind.INTEGER, Kind.UNSIGNED_INTEGER, Kind.TIME):
            return int(plain) if len(plain) <= 20 else text
        if kind is Kind.FLOAT:
            return float(plain)
    except ValueError:
        return text  # it will not fit
    if kind is Kind.BOOLEAN and plain.lower() in (*_TRUE, *_FALSE):
        return plain.lower() in _TRUE
    return from_base64(path, plain) if kind is Kind.OPAQUE else text


def _opaque(payload: bytes, asked: ResourcePath, found: Collected) -> None:
    _only_of_a_resource(asked, "a byte string")
    if found.kind_of(asked) in (None, Kind.OPAQUE):
        found.add(asked, payload)
    else:  # some devices answer every resource with this format
        _text(payload, asked, found)


def _json(payload: bytes, asked: ResourcePath, found: Collected) -> None:
    """JSON of an unnamed kind: SenML is an array."""
    read = decode_senml_json if payload.lstrip()[:1] == b"[" else decode_lwm2m_json
    read(payload, asked, found)


def _cbor(payload: bytes, asked: ResourcePath, found: Collected) -> None:
    value = cbor(payload, "CBOR")
    if isinstance(value, list):
        decode_senml_cbor(payload, asked, found)
        return
    _only_of_a_resource(asked, "a single value")
    if not isinstance(value, str | int | float | bytes):
        raise UnreadablePayload(f"has no value for {path_text(asked)}")
    found.add(asked, value)


_READERS: Final[Mapping[int, Callable[[bytes, ResourcePath, Collected], None]]] = {
    TEXT: _text,
    OCTETS: _opaque,
    TLV: tlv.decode_tlv,
    LWM2M_JSON: decode_lwm2m_json,
    SENML_JSON: decode_senml_json,
    SENML_CBOR: decode_senml_cbor,
    JSON: _json,
    CBOR: _cbor,
}


def is_link_format(format_: int | None) -> bool:
    """Whether the answer to Discover can be read; a missing content-format is taken for link format."""
    return format_ in (None, LINK_FORMAT)


def encode_plain_text(path: ResourcePath, value: ResourceValue, kinds: KindOf = kind_of) -> bytes:
    """A value as text for a Write. Times are given in milliseconds and written in seconds, bytes are in BASE64.

    Raises:
        ValueError: the value is a list, which is not written.
    """
    match value:
        case list():
            raise ValueError("a list cannot be written as text")
        case bytes():
            return base64.b64encode(value)
        case bool():
            return b"1" if value else b"0"
        case int() if kinds(path) is Kind.TIME:
            return str(value // 1000).encode()
    return str(value).encode()


def encode_paths(format_: int, paths: Iterable[ResourcePath]) -> bytes:
    """The list of resources of a composite operation, in SenML JSON or SenML CBOR (LwM2M 1.1, 7.4.4)."""
    if format_ == SENML_JSON:
        return json.dumps([{"n": path_text(path)} for path in paths], separators=(",", ":")).encode()
    return cbor2.dumps([{_CBOR_NAME: path_text(path)} for path in paths])
