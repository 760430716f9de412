"""The frames of the device channel, in and out (reference 19.1 and 19.3).

A client speaks JSON (text frames, or binary ones that begin with `{`) or MessagePack (all other binary frames). An
answer has the form of the frame that it answers. `decode_client_frame` never raises: a frame that cannot be accepted
becomes a `RefusedFrame`.

The first decoding of a frame is typed and fast, and every valid frame passes it. Only when a member has a wrong type,
the frame is decoded again, member by member, so that the refusal can name what is wrong and still carry the `cid`.
"""

import math
import re
from enum import Enum
from typing import Final, Literal, TypeAlias, cast

import msgpack
import msgspec
from msgspec import Raw

from broker.device_types.dropped import DroppedField
from broker.errors import BadRequest, DomainError, ValidationFailed, invalid
from broker.nesting import check_nesting
from config.limits import JSON_NESTING_MAX
from protocols.binary_json import NotFiniteError, check_finite, to_json
from protocols.refusals import reason_members
from protocols.websocket.errors import WrongCid, code_and_text
from protocols.websocket.message_pack import check_message_pack_nesting

CID_MAX_CHARACTERS: Final = 256  # reference 19.3

# Stands for a `ts` that is no number. Ingest refuses every negative `ts` with `Invalid ts value`, so such a `ts` gets
# the same refusal, at the same place in the order of checks.
NOT_A_TIME: Final = -1

Kind: TypeAlias = Literal["register", "unregister", "list", "message", "action"]


class FrameForm(Enum):
    """The encoding of a frame."""

    JSON = "json"
    MESSAGE_PACK = "messagepack"


# A `str` goes out as a text frame, `bytes` as a binary frame.
ServerFrame: TypeAlias = str | bytes


class RegisterFrame(msgspec.Struct, frozen=True, gc=False):
    """`token` is None when the frame has none, and empty when it cannot be parsed."""

    sdid: str | None
    token: str | None
    cid: str | None = None
    form: FrameForm = FrameForm.JSON


class UnregisterFrame(msgspec.Struct, frozen=True, gc=False):
    sdid: str | None
    cid: str | None = None
    form: FrameForm = FrameForm.JSON


class ListFrame(msgspec.Struct, frozen=True, gc=False):
    cid: str | None = None
    form: FrameForm = FrameForm.JSON


class MessageFrame(msgspec.Struct, frozen=True, gc=False):
    """`sdid` is None when absent, and empty when it is no text. `data` is JSON, also in a MessagePack frame."""

    sdid: str | None
    data: Raw | None
    ts: int | float | str | None = None
    cid: str | None = None
    form: FrameForm = FrameForm.JSON


class ActionFrame(msgspec.Struct, frozen=True, gc=False):
    sdid: str | None
    ddid: str | None
    data: Raw | None
    ts: int | float | str | None = None
    cid: str | None = None
    form: FrameForm = FrameForm.JSON


class RefusedFrame(msgspec.Struct, frozen=True, gc=False):
    """A frame that cannot be accepted. `kind` is None when the type of the frame is unknown."""

    error: DomainError
    kind: Kind | None = None
    cid: str | None = None
    form: FrameForm = FrameForm.JSON


ClientFrame: TypeAlias = MessageFrame | ActionFrame | RegisterFrame | UnregisterFrame | ListFrame | RefusedFrame


class Members(msgspec.Struct, gc=False):
    """The members of all client frames, as `client_frame` takes them. Others are skipped; null means absent."""

    type: str | None = None
    sdid: str | None = None
    ddid: str | None = None
    data: Raw = Raw()
    ts: int | float | str | None = None
    cid: str | int | None = None
    capital_authorization: str | None = msgspec.field(default=None, name="Authorization")
    authorization: str | None = None


class _UntypedMembers(msgspec.Struct, gc=False):
    """The members undecoded, for the second decoding."""

    type: Raw = Raw()
    sdid: Raw = Raw()
    ddid: Raw = Raw()
    data: Raw = Raw()
    ts: Raw = Raw()
    cid: Raw = Raw()
    capital_authorization: Raw = msgspec.field(default=Raw(), name="Authorization")
    authorization: Raw = Raw()


class _ActionData(msgspec.Struct, gc=False):
    actions: Raw = Raw()


_JSON = FrameForm.JSON
_ABSENT = Raw()
_JSON_NULL = Raw(b"null")
_NO_JSON = (_ABSENT, _JSON_NULL)
_MESSAGE_PACK_NIL = Raw(b"\xc0")
_NUMBER_STARTS = frozenset("-0123456789")
_NOT_A_CID = "x" * (CID_MAX_CHARACTERS + 1)  # stands for a `cid` of a wrong type: too long, so it gets the same refusal

_members_of_json = msgspec.json.Decoder(Members).decode
_members_of_message_pack = msgspec.msgpack.Decoder(Members).decode
_untyped_members_of_json = msgspec.json.Decoder(_UntypedMembers).decode
_untyped_members_of_message_pack = msgspec.msgpack.Decoder(_UntypedMembers).decode
_action_data = msgspec.json.Decoder(_ActionData).decode
_to_json = msgspec.json.Encoder().encode
_to_message_pack = msgspec.msgpack.Encoder().encode

_KINDS: Final[frozenset[str]] = frozenset({"register", "unregister", "list", "message", "action"})

# Spaces, `+` and `%20` are equal, because clients copy their query into the frame. The word `bearer` may be missing.
_BEARER = re.compile(r"(?:[\s+]|%20)*(?:bearer(?:[\s+]|%20)+)?([^\s+%]+)(?:[\s+]|%20)*", re.IGNORECASE)


def token_in(authorization: str) -> str | None:
    """The token in `bearer <token>`, or the bare token; None when there is no token."""
    match = _BEARER.fullmatch(authorization)
    return match[1] if match is not None else None


def form_of(payload: str | bytes) -> FrameForm:
    """Text frames are JSON; binary frames are JSON when they begin with `{`."""
    return _JSON if isinstance(payload, str) or payload[:1] == b"{" else FrameForm.MESSAGE_PACK


def decode_client_frame(payload: str | bytes) -> ClientFrame:
    """Decode one client frame: the text of a text frame, or the bytes of a binary one. Never raises."""
    form = _JSON if type(payload) is str else form_of(payload)
    try:
        members = _read(payload, form)
    except ValueError:  # not JSON, not UTF-8, no object, or nested too deeply
        return RefusedFrame(BadRequest(), form=form)
    return client_frame(members, form)


def members_of_text(text: str) -> Members | None:
    """The members of a text frame; None for most frames that are refused, which `decode_client_frame` takes."""
    try:
        if len(text) > JSON_NESTING_MAX:  # a shorter text cannot nest too deeply
            check_nesting(text)
        return _members_of_json(text)
    except ValueError:
        return None


def _read(payload: str | bytes, form: FrameForm) -> Members:
    if form is not _JSON:
        binary = cast("bytes", payload)
        check_message_pack_nesting(binary)
        try:
            return _members_of_message_pack(binary)
        except msgspec.ValidationError:
            return _decode_each(_untyped_members_of_message_pack(binary), form)
    # msgspec does not check the UTF-8 of members that it skips or keeps raw; `bytes.decode` checks all.
    text = payload if isinstance(payload, str) else payload.decode()
    check_nesting(text)
    try:
        return _members_of_json(text)
    except msgspec.ValidationError:
        return _decode_each(_untyped_members_of_json(text), form)


def client_frame(members: Members, form: FrameForm = FrameForm.JSON) -> ClientFrame:
    """The frame that has these members."""
    cid = members.cid
    if isinstance(cid, int):
        cid = str(cid)
    kind = _kind(members, form)
    if cid is not None and len(cid) > CID_MAX_CHARACTERS:
        return RefusedFrame(WrongCid() if kind is not None else BadRequest(), kind, form=form)
    match kind:
        case "message" | "action":
            return _message_or_action(members, kind, cid, form)
        case "register":
            return RegisterFrame(members.sdid, _token(members), cid, form)
        case "unregister":
            return UnregisterFrame(members.sdid, cid, form)
        case "list":
            return ListFrame(cid, form)
        case None:
            return RefusedFrame(BadRequest(), None, cid, form)


def _kind(members: Members, form: FrameForm) -> Kind | None:
    kind = members.type
    if kind is None:
        return "action" if members.ddid is not None and _carries_actions(members.data, form) else "message"
    if kind not in _KINDS:
        kind = kind.lower()
    return cast("Kind", kind) if kind in _KINDS else None


def _message_or_action(members: Members, kind: Kind, cid: str | None, form: FrameForm) -> ClientFrame:
    try:
        if kind == "action" and form is not _JSON and members.data != _ABSENT:
            check_finite(_of_message_pack(members.data))  # an Action is sent on as it is
        data = _as_json(members.data, form)
    except NotFiniteError as error:
        return RefusedFrame(ValidationFailed.of(error.path, invalid("must be a finite number")), kind, cid, form)
    except (ValueError, TypeError):  # MessagePack has values that JSON has not
        return RefusedFrame(BadRequest(), kind, cid, form)
    if kind == "message":
        return MessageFrame(members.sdid, data, members.ts, cid, form)
    return ActionFrame(members.sdid, members.ddid, data, members.ts, cid, form)


def _as_json(data: Raw, form: FrameForm) -> Raw | None:
    if form is _JSON:
        return None if data in _NO_JSON else data
    if data in (_ABSENT, _MESSAGE_PACK_NIL):
        return None
    return Raw(to_json(_of_message_pack(data)))


def _of_message_pack(data: Raw) -> object:
    """Raises ValueError. A text may have half of a surrogate pair."""
    try:
        return msgspec.msgpack.decode(data)
    except UnicodeDecodeError:
        try:
            return msgpack.unpackb(data, unicode_errors="surrogatepass", strict_map_key=False)
        except msgpack.UnpackException as error:
            raise ValueError(str(error)) from error


def json_text(data: Raw) -> bytes:
    """`data` for Ingest. When `data` is a text, the content of the text is the JSON (reference 8.4)."""
    text = bytes(data)
    if not text.startswith(b'"'):
        return text
    try:
        return msgspec.json.decode(text, type=str).encode()
    except ValueError:  # no valid text; Ingest refuses it
        return text


def _carries_actions(data: Raw, form: FrameForm) -> bool:
    try:
        json = _as_json(data, form)
        if json is None:
            return False
        text = json_text(json)
        check_nesting(text)
        found = _action_data(text)
    except (ValueError, TypeError):
        return False
    return found.actions not in _NO_JSON


def _token(members: Members) -> str | None:
    given = members.capital_authorization
    if given is None:
        given = members.authorization
    return None if given is None else token_in(given) or ""


def _decode_each(members: _UntypedMembers, form: FrameForm) -> Members:
    return Members(
        type=_text(members.type, form),
        sdid=_text(members.sdid, form),
        ddid=_text(members.ddid, form),
        data=members.data,
        ts=_number(members.ts, form),
        cid=_cid(members.cid, form),
        capital_authorization=_text(members.capital_authorization, form),
        authorization=_text(members.authorization, form),
    )


def _value(raw: Raw, form: FrameForm) -> object:
    if raw == _ABSENT:
        return None
    return msgspec.json.decode(raw) if form is _JSON else msgspec.msgpack.decode(raw)


def _text(raw: Raw, form: FrameForm) -> str | None:
    """The text; empty when the member is no text."""
    try:
        value = _value(raw, form)
    except msgspec.ValidationError:  # a number out of range
        return ""
    return value if value is None or isinstance(value, str) else ""


def _number(raw: Raw, form: FrameForm) -> int | float | str | None:
    try:
        value = _value(raw, form)
    except msgspec.ValidationError:
        return NOT_A_TIME
    if value is None:
        return None
    return value if isinstance(value, int | float | str) and not isinstance(value, bool) else NOT_A_TIME


def _cid(raw: Raw, form: FrameForm) -> str | None:
    if form is _JSON and (text := bytes(raw).decode())[:1] in _NUMBER_STARTS:
        return text  # a number is echoed as the client wrote it
    try:
        value = _value(raw, form)
    except msgspec.ValidationError:
        return _NOT_A_CID
    if isinstance(value, float) and math.isfinite(value):
        return _to_json(value).decode()
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return value if value is None or isinstance(value, str) else _NOT_A_CID


#: Texts that JSON writes between quotation marks as they are.
_is_bare = re.compile(r"[ !#-\[\]-~]*").fullmatch


class _Done(msgspec.Struct, gc=False, omit_defaults=True):
    message: str | tuple[str, ...]
    code: str
    cid: str | None = None


class _Stored(msgspec.Struct, gc=False, omit_defaults=True):
    mid: str
    cid: str | None = None


class _Error(msgspec.Struct, gc=False, omit_defaults=True):
    code: int
    message: str
    cid: str | None = None
    reason: str = ""


class _Data(msgspec.Struct, gc=False):
    data: _Done | _Stored


class _Warned(msgspec.Struct):
    data: _Stored
    warnings: tuple[DroppedField, ...]


class _Failure(msgspec.Struct, gc=False):
    error: _Error


class _Ping(msgspec.Struct, gc=False, tag_field="type", tag="ping"):
    ts: int


def acknowledgement(cid: str | None, form: FrameForm) -> ServerFrame:
    """The answer to register and unregister."""
    return _render(_Data(_Done("OK", "200", cid)), form)


def device_list(sdids: tuple[str, ...], cid: str | None, form: FrameForm) -> ServerFrame:
    return _render(_Data(_Done(sdids, "200", cid)), form)


def stored(mid: str, cid: str | None, form: FrameForm, warnings: tuple[DroppedField, ...] = ()) -> ServerFrame:
    """The answer to a message or an Action, once it is stored. `warnings`: the fields that were not kept."""
    if (
        form is _JSON and not warnings and (cid is None or (cid.isalnum() and cid.isascii()) or _is_bare(cid))
    ):  # as the encoder would write it
        return f'{{"data":{{"mid":"{mid}"}}}}' if cid is None else f'{{"data":{{"mid":"{mid}","cid":"{cid}"}}}}'
    if warnings:
        return _render(_Warned(_Stored(mid, cid), warnings), form)
    return _render(_Data(_Stored(mid, cid)), form)


def error_frame(error: DomainError, cid: str | None, form: FrameForm) -> ServerFrame:
    code, text = code_and_text(error)
    return _render(_Failure(_Error(code, text, cid, **reason_members(error))), form)


def wanted_frame(ddid: str, document: bytes, form: FrameForm) -> ServerFrame:
    """`document`: `{"data":{…}}` with the values that are wanted of the device."""
    if form is _JSON:
        return f'{{"type":"wanted","ddid":"{ddid}",{document[1:].decode()}'
    return _to_message_pack({"type": "wanted", "ddid": ddid, **msgspec.json.decode(document)})


def ping(now_ms: int, form: FrameForm) -> ServerFrame:
    return _render(_Ping(now_ms), form)


def _render(frame: _Data | _Warned | _Failure | _Ping, form: FrameForm) -> ServerFrame:
    return _to_json(frame).decode() if form is _JSON else _to_message_pack(frame)
