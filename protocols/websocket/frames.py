"""The frames of the device channel, in and out (reference 19.1 and 19.3).

A client speaks JSON (text frames, or binary ones that begin with `{`) or MessagePack (all other binary frames), and
every answer takes the form of the frame it answers. `decode` never raises: what cannot be accepted becomes a `Refused`
frame.

Reading happens twice at most. The first look is typed and fast, and every frame of a well-behaved client passes it.
Only when a member has a type it should not have, the second look reads member by member, so that the refusal can name
what is wrong and still carry the `cid`.
"""

import math
import re
from enum import Enum
from typing import Final, Literal, TypeAlias, cast

import msgspec
from msgspec import Raw

from broker.errors import BadRequest, DomainError
from protocols.websocket.errors import WrongCid, code_and_text

CID_MAX_CHARACTERS: Final = 256  # reference 19.3

# Ingest refuses every negative `ts` with `Invalid ts value`; a `ts` that is no number at all is to end the same way,
# and at the same place in the order of checks.
NOT_A_TIME: Final = -1

Kind: TypeAlias = Literal["register", "unregister", "list", "message", "action"]


class Form(Enum):
    """How a frame is written down."""

    JSON = "json"
    MESSAGE_PACK = "messagepack"


# A `str` goes out as a text frame, `bytes` as a binary frame.
ServerFrame: TypeAlias = str | bytes


class Register(msgspec.Struct, frozen=True, gc=False):
    """`token` is None when the frame carries none, and empty when it carries one that cannot be read."""

    sdid: str | None
    token: str | None
    cid: str | None = None
    form: Form = Form.JSON


class Unregister(msgspec.Struct, frozen=True, gc=False):
    sdid: str | None
    cid: str | None = None
    form: Form = Form.JSON


class List(msgspec.Struct, frozen=True, gc=False):
    cid: str | None = None
    form: Form = Form.JSON


class Message(msgspec.Struct, frozen=True, gc=False):
    """`sdid` is None when absent, and empty when it names nothing. `data` is JSON, whatever the form of the frame."""

    sdid: str | None
    data: Raw | None
    ts: int | float | None = None
    cid: str | None = None
    form: Form = Form.JSON


class Action(msgspec.Struct, frozen=True, gc=False):
    sdid: str | None
    ddid: str | None
    data: Raw | None
    ts: int | float | None = None
    cid: str | None = None
    form: Form = Form.JSON


class Refused(msgspec.Struct, frozen=True, gc=False):
    """A frame that is refused on sight. `kind` is None when it cannot be told what it was meant to be."""

    error: DomainError
    kind: Kind | None = None
    cid: str | None = None
    form: Form = Form.JSON


ClientFrame: TypeAlias = Message | Action | Register | Unregister | List | Refused


class _Members(msgspec.Struct, gc=False):
    """All members that any client frame may have. The others are skipped unread; null is absent."""

    type: str | None = None
    sdid: str | None = None
    ddid: str | None = None
    data: Raw = Raw()
    ts: int | float | None = None
    cid: str | int | None = None
    capital_authorization: str | None = msgspec.field(default=None, name="Authorization")
    authorization: str | None = None


class _UntypedMembers(msgspec.Struct, gc=False):
    """The same members as they stand in the frame, for the second look."""

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


_JSON = Form.JSON
_ABSENT = Raw()
_JSON_NULL = Raw(b"null")
_MESSAGE_PACK_NIL = Raw(b"\xc0")
_NUMBER_STARTS = frozenset("-0123456789")
_NOT_A_CID = "x" * (CID_MAX_CHARACTERS + 1)  # stands for a `cid` of a wrong type: too long, thus refused like one

_members_of_json = msgspec.json.Decoder(_Members).decode
_members_of_message_pack = msgspec.msgpack.Decoder(_Members).decode
_untyped_members_of_json = msgspec.json.Decoder(_UntypedMembers).decode
_untyped_members_of_message_pack = msgspec.msgpack.Decoder(_UntypedMembers).decode
_action_data = msgspec.json.Decoder(_ActionData).decode
_to_json = msgspec.json.Encoder().encode
_to_message_pack = msgspec.msgpack.Encoder().encode

_KINDS: Final[frozenset[str]] = frozenset({"register", "unregister", "list", "message", "action"})

# Blanks and `+` are equal, and so is `%20` where a client copied its query into the frame. The word may be missing.
_BEARER = re.compile(r"(?:[\s+]|%20)*(?:bearer(?:[\s+]|%20)+)?([^\s+%]+)(?:[\s+]|%20)*", re.IGNORECASE)


def bearer_token(authorization: str) -> str | None:
    """The token of `bearer <token>`, or of the bare token; None when there is no such thing in it."""
    match = _BEARER.fullmatch(authorization)
    return match[1] if match is not None else None


def form_of(payload: str | bytes) -> Form:
    """Text frames are JSON; of binary frames the first byte tells."""
    return _JSON if isinstance(payload, str) or payload[:1] == b"{" else Form.MESSAGE_PACK


def decode(payload: str | bytes) -> ClientFrame:
    """Read one client frame: the text of a text frame, or the bytes of a binary one. Never raises."""
    form = form_of(payload)
    try:
        members = _read(payload, form)
    except (ValueError, RecursionError):  # not JSON, not UTF-8, not an object, or nested without end
        return Refused(BadRequest(), form=form)
    return _frame(members, form)


def _read(payload: str | bytes, form: Form) -> _Members:
    if form is not _JSON:
        binary = cast("bytes", payload)
        try:
            return _members_of_message_pack(binary)
        except msgspec.ValidationError:
            return _second_look(_untyped_members_of_message_pack(binary), form)
    # msgspec does not look at the encoding of what it skips or keeps raw; `decode` does.
    text = payload if isinstance(payload, str) else payload.decode()
    try:
        return _members_of_json(text)
    except msgspec.ValidationError:
        return _second_look(_untyped_members_of_json(text), form)


def _frame(members: _Members, form: Form) -> ClientFrame:
    cid = members.cid
    if isinstance(cid, int):
        cid = str(cid)
    kind = _kind(members, form)
    if cid is not None and len(cid) > CID_MAX_CHARACTERS:
        return Refused(WrongCid() if kind is not None else BadRequest(), kind, form=form)
    match kind:
        case "message" | "action":
            return _message_or_action(members, kind, cid, form)
        case "register":
            return Register(members.sdid, _token(members), cid, form)
        case "unregister":
            return Unregister(members.sdid, cid, form)
        case "list":
            return List(cid, form)
        case None:
            return Refused(BadRequest(), None, cid, form)


def _kind(members: _Members, form: Form) -> Kind | None:
    kind = members.type
    if kind is None:
        return "action" if members.ddid is not None and _carries_actions(members.data, form) else "message"
    if kind not in _KINDS:
        kind = kind.lower()
    return cast("Kind", kind) if kind in _KINDS else None


def _message_or_action(members: _Members, kind: Kind, cid: str | None, form: Form) -> ClientFrame:
    try:
        data = _as_json(members.data, form)
    except (ValueError, TypeError, RecursionError):  # MessagePack can say what JSON cannot
        return Refused(BadRequest(), kind, cid, form)
    if kind == "message":
        return Message(members.sdid, data, members.ts, cid, form)
    return Action(members.sdid, members.ddid, data, members.ts, cid, form)


def _as_json(data: Raw, form: Form) -> Raw | None:
    if form is _JSON:
        return None if data in (_ABSENT, _JSON_NULL) else data
    if data in (_ABSENT, _MESSAGE_PACK_NIL):
        return None
    return Raw(_to_json(msgspec.msgpack.decode(data)))


def json_text(data: Raw) -> bytes:
    """`data` as Ingest wants it: given as a text, it is the text that is parsed as JSON (reference 8.4)."""
    text = bytes(data)
    if not text.startswith(b'"'):
        return text
    try:
        return msgspec.json.decode(text, type=str).encode()
    except ValueError:  # not a text after all; Ingest says so
        return text


def _carries_actions(data: Raw, form: Form) -> bool:
    try:
        json = _as_json(data, form)
        if json is None:
            return False
        found = _action_data(json_text(json))
    except (ValueError, TypeError, RecursionError):
        return False
    return found.actions not in (_ABSENT, _JSON_NULL)


def _token(members: _Members) -> str | None:
    given = members.capital_authorization
    if given is None:
        given = members.authorization
    return None if given is None else bearer_token(given) or ""


def _second_look(members: _UntypedMembers, form: Form) -> _Members:
    return _Members(
        type=_text(members.type, form),
        sdid=_text(members.sdid, form),
        ddid=_text(members.ddid, form),
        data=members.data,
        ts=_number(members.ts, form),
        cid=_cid(members.cid, form),
        capital_authorization=_text(members.capital_authorization, form),
        authorization=_text(members.authorization, form),
    )


def _value(raw: Raw, form: Form) -> object:
    if raw == _ABSENT:
        return None
    return msgspec.json.decode(raw) if form is _JSON else msgspec.msgpack.decode(raw)


def _text(raw: Raw, form: Form) -> str | None:
    """The text, empty for what is not one."""
    try:
        value = _value(raw, form)
    except msgspec.ValidationError:  # a number beyond every range
        return ""
    return value if value is None or isinstance(value, str) else ""


def _number(raw: Raw, form: Form) -> int | float | None:
    try:
        value = _value(raw, form)
    except msgspec.ValidationError:
        return NOT_A_TIME
    if value is None:
        return None
    return value if isinstance(value, int | float) and not isinstance(value, bool) else NOT_A_TIME


def _cid(raw: Raw, form: Form) -> str | None:
    if form is _JSON and (text := bytes(raw).decode())[:1] in _NUMBER_STARTS:
        return text  # a number is echoed as its client spelled it
    try:
        value = _value(raw, form)
    except msgspec.ValidationError:
        return _NOT_A_CID
    if isinstance(value, float) and math.isfinite(value):
        return _to_json(value).decode()
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return value if value is None or isinstance(value, str) else _NOT_A_CID


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


class _Data(msgspec.Struct, gc=False):
    data: _Done | _Stored


class _Failure(msgspec.Struct, gc=False):
    error: _Error


class _Ping(msgspec.Struct, gc=False, tag_field="type", tag="ping"):
    ts: int


def acknowledgement(cid: str | None, form: Form) -> ServerFrame:
    """To register and unregister."""
    return _render(_Data(_Done("OK", "200", cid)), form)


def device_list(sdids: tuple[str, ...], cid: str | None, form: Form) -> ServerFrame:
    return _render(_Data(_Done(sdids, "200", cid)), form)


def stored(mid: str, cid: str | None, form: Form) -> ServerFrame:
    """To a message or an Action, once it is stored."""
    return _render(_Data(_Stored(mid, cid)), form)


def error_frame(error: DomainError, cid: str | None, form: Form) -> ServerFrame:
    code, text = code_and_text(error)
    return _render(_Failure(_Error(code, text, cid)), form)


def ping(now_ms: int, form: Form) -> ServerFrame:
    return _render(_Ping(now_ms), form)


def _render(frame: _Data | _Failure | _Ping, form: Form) -> ServerFrame:
    return _to_json(frame).decode() if form is _JSON else _to_message_pack(frame)
