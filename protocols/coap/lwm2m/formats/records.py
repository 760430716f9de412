"""The formats that are lists of named records: LWM2M JSON (LwM2M 1.0, 6.4.4), SenML JSON and SenML CBOR (RFC 8428)."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import msgspec

from broker.device_management.sessions import ResourcePath
from broker.errors import BadRequest
from broker.numbers import number_out_of_range
from protocols.coap.lwm2m.formats.values import Collected, Scalar, UnreadablePayload, from_base64, parse_path, path_text
from protocols.coap.requests import decode_cbor

#: The members of SenML, as labels of CBOR (RFC 8428, 6).
_LABELS: Final[Mapping[object, str]] = {
    -2: "bn",
    -3: "bt",
    -4: "bu",
    -5: "bv",
    -6: "bs",
    -1: "bver",
    0: "n",
    2: "v",
    3: "vs",
    4: "vb",
    6: "t",
    8: "vd",
}
_MAX_NAME: Final = 64
_MOST_SECONDS: Final = 10**12  # 31,000 years; sums of these are exact to the millisecond
_decode_json: Final = msgspec.json.Decoder().decode


def decode_lwm2m_json(payload: bytes, asked: ResourcePath, found: Collected) -> None:
    """Collect the values of an answer to a Read of `asked`. Raises Unreadable."""
    document = _json(payload)
    if not isinstance(document, dict) or not isinstance(document.get("e"), list):
        raise UnreadablePayload("is not LWM2M JSON: it is no object with the array e")
    base, base_time = document.get("bn", ""), document.get("bt", 0)
    for entry in document["e"]:
        path = _path(base, entry.get("n", ""), asked) if isinstance(entry, dict) else None
        if path is None:
            raise UnreadablePayload("is not LWM2M JSON: an entry of e is no object")
        seconds = _seconds(path, base_time, entry.get("t", 0))
        found.add(path, _member(entry, path, "v", "sv", "bv", "ov"), seconds)


def decode_senml_json(payload: bytes, asked: ResourcePath, found: Collected) -> None:
    """Collect the values of an answer to a Read of `asked`. Raises Unreadable."""
    _senml(_json(payload), asked, found, "SenML JSON")


def decode_senml_cbor(payload: bytes, asked: ResourcePath, found: Collected) -> None:
    """Collect the values of an answer to a Read of `asked`. Raises Unreadable."""
    document = cbor(payload, "SenML CBOR")
    if isinstance(document, list):
        document = [
            {_label(name): value for name, value in one.items()} if isinstance(one, dict) else one for one in document
        ]
    _senml(document, asked, found, "SenML CBOR")


def _label(name: object) -> object:
    # True equals 1 and 0.0 equals 0, and neither is a label.
    return _LABELS.get(name, name) if type(name) is int else name


def _senml(document: object, asked: ResourcePath, found: Collected, name: str) -> None:
    if not isinstance(document, list) or not all(isinstance(record, dict) for record in document):
        raise UnreadablePayload(f"is not {name}: it is no array of records")
    records: Sequence[Mapping[object, Any]] = document
    base: object = ""
    base_time: object = 0
    for record in records:
        base, base_time = record.get("bn", base), record.get("bt", base_time)
        if "bv" in record or "bs" in record:
            raise UnreadablePayload("has a base value, which LWM2M does not use")
        if not ({"v", "vs", "vb", "vd", "vlo"} & record.keys()):
            if record.keys() <= {"bn", "bt", "bu", "bver"}:  # a record that only sets the base
                continue
            raise UnreadablePayload(f"is not {name}: a record has no value")
        path = _path(base, record.get("n", ""), asked)
        seconds = _seconds(path, base_time, record.get("t", 0))
        found.add(path, _member(record, path, "v", "vs", "vb", "vlo", opaque="vd"), seconds)


def _json(payload: bytes) -> Any:
    try:
        return _decode_json(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        where = number_out_of_range(payload)  # which msgspec does not take, and which is JSON
        raise UnreadablePayload(
            "is not JSON" if where is None else f"has a number at {where} that is out of range"
        ) from None


def cbor(payload: bytes, name: str) -> object:
    """One CBOR value. Raises Unreadable."""
    try:
        return decode_cbor(payload)
    except BadRequest:
        raise UnreadablePayload(f"is not {name}: its bytes are no CBOR, or more than one value") from None


def _path(base: object, name: object, asked: ResourcePath) -> ResourcePath:
    """The path of a record: base name and name together, or a name within what was asked for.

    Devices differ in the slash between both, and some leave the base name out.
    """
    if not isinstance(base, str) or not isinstance(name, str) or len(base) > _MAX_NAME or len(name) > _MAX_NAME:
        raise UnreadablePayload("has a name that is not a text, or too long")
    if base and name and not base.endswith("/") and not name.startswith("/"):
        base += "/"
    if base:
        return parse_path(base + name)
    if name.startswith("/"):
        return parse_path(name)
    return (*asked, *parse_path(name))


def _seconds(path: ResourcePath, base: object, offset: object) -> float:
    """The time of a record: base time and time together. Raises Unreadable."""
    for part in (base, offset):
        if isinstance(part, bool) or not isinstance(part, int | float):
            raise UnreadablePayload(f"has a time at {path_text(path)} that is not a number")
        if not abs(part) <= _MOST_SECONDS:  # also for NaN
            raise UnreadablePayload(f"has a time at {path_text(path)} that is too far away")
    return base + offset  # type: ignore[operator,no-any-return]


def _member(record: Mapping[Any, Any], path: ResourcePath, *names: str, opaque: str = "") -> Scalar:
    """The value of a record, under one of these names."""
    for name in names:
        if name in record:
            value = record[name]
            wanted = _TYPES[name]
            if not isinstance(value, wanted) or (name == "v" and isinstance(value, bool)):
                raise UnreadablePayload(f"has {name} of a wrong type at {path_text(path)}")
            return cast("Scalar", value)
    encoded = record.get(opaque)
    if isinstance(encoded, bytes):
        return encoded
    if isinstance(encoded, str):
        return from_base64(path, encoded)
    raise UnreadablePayload(f"has no value at {path_text(path)}")


_TYPES: Final[Mapping[str, type | tuple[type, ...]]] = {
    "v": (int, float),
    "vs": str,
    "sv": str,
    "vb": bool,
    "bv": bool,
    "ov": str,
    "vlo": str,
}
