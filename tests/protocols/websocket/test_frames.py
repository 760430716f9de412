"""Frames of the device channel: what clients may write, and what the server writes back, byte for byte."""

import json
from typing import cast

import msgpack
import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import Raw

from broker.errors import BadRequest, DomainError, PermissionDenied
from protocols.websocket.errors import WrongCid
from protocols.websocket.frames import (
    NOT_A_TIME,
    Action,
    ClientFrame,
    Form,
    List,
    Message,
    Refused,
    Register,
    Unregister,
    acknowledgement,
    bearer_token,
    decode,
    device_list,
    error_frame,
    ping,
    stored,
)

TOKEN = "2" * 32
MID = "3" * 32

# The forms in which one and the same frame may arrive.
WRITTEN = [
    pytest.param(lambda members: json.dumps(members, ensure_ascii=False), Form.JSON, id="text"),
    pytest.param(lambda members: json.dumps(members).encode(), Form.JSON, id="binary JSON"),
    pytest.param(msgpack.packb, Form.MESSAGE_PACK, id="MessagePack by msgpack"),
    pytest.param(msgspec.msgpack.encode, Form.MESSAGE_PACK, id="MessagePack by msgspec"),
]

FRAMES = [
    (
        {"type": "register", "sdid": "d", "Authorization": f"bearer {TOKEN}", "cid": "c"},
        Register("d", TOKEN, "c"),
    ),
    ({"type": "register", "sdid": "d", "authorization": TOKEN}, Register("d", TOKEN)),
    ({"type": "register", "sdid": "d"}, Register("d", None)),
    ({"type": "register", "sdid": "d", "Authorization": None, "authorization": TOKEN}, Register("d", TOKEN)),
    ({"type": "register", "sdid": "d", "Authorization": ""}, Register("d", "")),
    ({"type": "register", "sdid": "d", "Authorization": 5}, Register("d", "")),
    ({"type": "register", "sdid": 5, "Authorization": TOKEN}, Register("", TOKEN)),
    ({"type": "register"}, Register(None, None)),
    ({"type": "unregister", "sdid": "d", "cid": "c"}, Unregister("d", "c")),
    ({"type": "unregister", "sdid": ["d"]}, Unregister("")),
    ({"type": "list"}, List()),
    ({"type": "list", "cid": None, "sdid": 5, "ddid": {}, "ts": "x", "data": 1, "unknown": [1]}, List()),
    ({"type": "message", "sdid": "d", "data": {"a": 1}}, Message("d", Raw(b'{"a":1}'))),
    ({"type": "MESSAGE", "data": {"a": 1}}, Message(None, Raw(b'{"a":1}'))),
    ({"data": {"a": 1}, "ts": 5, "cid": "c"}, Message(None, Raw(b'{"a":1}'), 5, "c")),
    ({"type": None, "sdid": None, "data": "text", "ts": None}, Message(None, Raw(b'"text"'))),
    ({"data": '{"a":1}'}, Message(None, Raw(b'"{\\"a\\":1}"'))),
    ({"type": "message", "ddid": "t", "data": {"actions": []}}, Message(None, Raw(b'{"actions":[]}'))),
    ({"data": None}, Message(None, None)),
    ({}, Message(None, None)),
    (
        {"type": "action", "sdid": "d", "ddid": "t", "data": {"actions": [1]}, "ts": 5, "cid": "c"},
        Action("d", "t", Raw(b'{"actions":[1]}'), 5, "c"),
    ),
    ({"type": "Action", "data": {}}, Action(None, None, Raw(b"{}"))),
    ({"type": "action", "ddid": 7, "data": {}}, Action(None, "", Raw(b"{}"))),
    # Without `type` it is an Action when it has `ddid` and `data.actions`, otherwise a message.
    ({"ddid": "t", "data": {"actions": []}}, Action(None, "t", Raw(b'{"actions":[]}'))),
    ({"ddid": "t", "data": '{"actions":[]}'}, Action(None, "t", Raw(b'"{\\"actions\\":[]}"'))),
    ({"ddid": "t", "data": {"actions": None}}, Message(None, Raw(b'{"actions":null}'))),
    ({"ddid": "t", "data": {"a": 1}}, Message(None, Raw(b'{"a":1}'))),
    ({"ddid": "t", "data": "actions"}, Message(None, Raw(b'"actions"'))),
    ({"ddid": "t", "data": [1]}, Message(None, Raw(b"[1]"))),
    ({"ddid": "t"}, Message(None, None)),
    ({"ddid": None, "data": {"actions": []}}, Message(None, Raw(b'{"actions":[]}'))),
    ({"data": {"actions": []}}, Message(None, Raw(b'{"actions":[]}'))),
]


def compact(frame: ClientFrame) -> ClientFrame:
    """`data` as it would be without the sender's blanks; everything else as it is."""
    if isinstance(frame, Message | Action) and frame.data is not None:
        return msgspec.structs.replace(frame, data=Raw(msgspec.json.format(bytes(frame.data), indent=-1)))
    return frame


@pytest.mark.parametrize(("write", "form"), WRITTEN)
@pytest.mark.parametrize(("members", "frame"), FRAMES)
def test_frame(members: object, frame: ClientFrame, write: object, form: Form) -> None:
    assert callable(write)
    assert compact(decode(write(members))) == msgspec.structs.replace(frame, form=form)


def test_data_is_kept_as_it_was_written() -> None:
    frame = decode('{"data": { "a" : 1.50, "\\u00e9": [ ] }}')
    assert frame == Message(None, Raw(b'{ "a" : 1.50, "\\u00e9": [ ] }'))


@pytest.mark.parametrize(
    ("ts", "value"),
    [
        ("1472794753437", 1472794753437),
        ("1472794753437.9", 1472794753437.9),
        ("-1", -1),
        ("null", None),
        ("123456789012345678901234567890", 123456789012345678901234567890),
        ("1e400", NOT_A_TIME),
        ('"1472794753437"', NOT_A_TIME),
        ('""', NOT_A_TIME),
        ("true", NOT_A_TIME),
        ("{}", NOT_A_TIME),
        ("[1]", NOT_A_TIME),
    ],
)
def test_ts_passes_as_a_number_or_as_one_that_ingest_refuses(ts: str, value: float | None) -> None:
    assert decode(f'{{"data":{{}},"ts":{ts},"cid":"c"}}') == Message(None, Raw(b"{}"), value, "c")


@pytest.mark.parametrize(
    ("cid", "echoed"),
    [
        ('"12345"', "12345"),
        ('""', ""),
        ('"caf\\u00e9 \\"x\\""', 'café "x"'),
        (json.dumps("é" * 256), "é" * 256),
        ("7", "7"),
        ("-7", "-7"),
        ("1.50", "1.50"),
        ("1e400", "1e400"),
        ("123456789012345678901234567890", "123456789012345678901234567890"),
        ("1" * 256, "1" * 256),
        ("null", None),
    ],
)
def test_cid_is_echoed_as_text(cid: str, echoed: str | None) -> None:
    assert decode(f'{{"type":"list","cid":{cid}}}') == List(echoed)


@pytest.mark.parametrize(
    "cid",
    ["{}", "[]", '["c"]', "true", "false", json.dumps("é" * 257), "1" * 257, "-" + "1" * 4300, "1" * 4301, "1" * 9999],
)
@pytest.mark.parametrize("kind", ["register", "unregister", "list", "message", "action"])
def test_wrong_cid(cid: str, kind: str) -> None:
    frame = decode(f'{{"type":"{kind}","data":{{}},"cid":{cid}}}')
    assert isinstance(frame, Refused)
    assert isinstance(frame.error, WrongCid)
    assert (frame.kind, frame.cid) == (kind, None)


@pytest.mark.parametrize(
    ("cid", "echoed"), [(7, "7"), (2**64 - 1, "18446744073709551615"), (-7, "-7"), (1.5, "1.5"), ("é", "é")]
)
def test_cid_in_messagepack(cid: object, echoed: str) -> None:
    assert decode(msgpack.packb({"type": "list", "cid": cid})) == List(echoed, Form.MESSAGE_PACK)


@pytest.mark.parametrize("cid", [b"c", float("nan"), float("inf"), {}, [], True])
def test_wrong_cid_in_messagepack(cid: object) -> None:
    frame = decode(msgpack.packb({"type": "list", "cid": cid}))
    assert isinstance(frame, Refused)
    assert isinstance(frame.error, WrongCid)


UNREADABLE = [
    "",
    " ",
    "not JSON",
    '{"type":"list"',
    '{"type":"list"}}',
    "{'type':'list'}",
    "null",
    "7",
    '"list"',
    "[]",
    '[{"type":"list"}]',
    '{"type":"subscribe"}',
    '{"type":""}',
    '{"type":7}',
    '{"type":"subscribe","cid":[]}',
    '{"type":["list"]}',
    '{"data":NaN}',
    '{"data":{"a":1,}}',
    '\ufeff{"type":"list"}',
    '{"data":' + "[" * 50_000 + "]" * 50_000 + "}",
    '{"type":"list","unknown":' + "[" * 60_000,
    '{"type":"li\ud800st"}',
    b"",
    b"\xc0",
    b"\x90",
    b"\xc1",
    b'[{"type":"list"}]',
    b' {"type":"list"}',
    b'{"type":"list","unknown":"\xff"}',
    b'{"data":"\xff"}',
    b"\x81\xa4type\xa4lis",
    b"\x81\xa4data\xdd\xff\xff\xff\xff",
    b"\x81\xa4data\xdf\xff\xff\xff\xff",
    b"\x81\xa4data\xa1\xff",
    b"\x81\xa4data\xd4\x05\x01",
    b"\x81\xa4data\x81\x90\x01",
    b"\x81\xa4data\x81\x80\x01",
    b"\x81\xa4data" + b"\x91" * 60_000 + b"\x01",
    b"\x81\xa3cid\xa1\xff",
    b"\x81\x01\x02",
]


@pytest.mark.parametrize("payload", UNREADABLE, ids=range(len(UNREADABLE)))
def test_bad_request(payload: str | bytes) -> None:
    frame = decode(payload)
    assert isinstance(frame, Refused)
    assert isinstance(frame.error, BadRequest)


def test_an_unknown_type_is_refused_with_its_cid() -> None:
    frame = decode('{"type":"subscribe","cid":7}')
    assert isinstance(frame, Refused)
    assert (frame.kind, frame.cid) == (None, "7")


@pytest.mark.parametrize(
    ("authorization", "token"),
    [
        (f"bearer {TOKEN}", TOKEN),
        (f"Bearer {TOKEN}", TOKEN),
        (f"BEARER   {TOKEN}", TOKEN),
        (f"bearer+{TOKEN}", TOKEN),
        (f"bearer++ \t{TOKEN}", TOKEN),
        (f"bearer%20{TOKEN}", TOKEN),
        (f"  {TOKEN} ", TOKEN),
        (TOKEN, TOKEN),
        (f"bearer{TOKEN}", f"bearer{TOKEN}"),
        ("", None),
        ("   ", None),
        (f"Basic {TOKEN}", None),
        (f"bearer {TOKEN} {TOKEN}", None),
    ],
)
def test_bearer_token(authorization: str, token: str | None) -> None:
    assert bearer_token(authorization) == token


DENIED = PermissionDenied("WRITE on device 1234")

SERVER_FRAMES = [
    (acknowledgement, (), '{"data":{"message":"OK","code":"200"}}'),
    (device_list, (("a", "b"),), '{"data":{"message":["a","b"],"code":"200"}}'),
    (device_list, ((),), '{"data":{"message":[],"code":"200"}}'),
    (stored, (MID,), f'{{"data":{{"mid":"{MID}"}}}}'),
    (error_frame, (DENIED,), '{"error":{"code":403,"message":"You do not have the right permission: devices"}}'),
]


@pytest.mark.parametrize(
    ("cid", "member"), [(None, ""), ("7", ',"cid":"7"'), ("", ',"cid":""'), ('"é', ',"cid":"\\"é"')]
)
@pytest.mark.parametrize(("render", "arguments", "text"), SERVER_FRAMES)
def test_server_frame(render: object, arguments: tuple[object, ...], text: str, cid: str | None, member: str) -> None:
    assert callable(render)
    expected = text[:-2] + member + "}}"
    assert render(*arguments, cid, Form.JSON) == expected
    packed = render(*arguments, cid, Form.MESSAGE_PACK)
    assert isinstance(packed, bytes)
    assert msgpack.unpackb(packed) == json.loads(expected)


def test_ping() -> None:
    assert ping(1507328677960, Form.JSON) == '{"type":"ping","ts":1507328677960}'
    assert msgpack.unpackb(cast("bytes", ping(5, Form.MESSAGE_PACK))) == {"type": "ping", "ts": 5}


# --- Whatever arrives ---------------------------------------------------------------------------------------------

scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary()
trees = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(scalars, inner, max_size=3), max_leaves=8
)
names = st.sampled_from(["type", "sdid", "ddid", "data", "ts", "cid", "Authorization", "authorization", "x"])
kinds = st.sampled_from(["register", "unregister", "list", "message", "action"])
maps = st.dictionaries(names, kinds | trees, max_size=9)


def check(frame: ClientFrame) -> None:
    assert frame.cid is None or len(frame.cid) <= 256
    if isinstance(frame, Refused):
        assert isinstance(frame.error, DomainError)
    if isinstance(frame, Message | Action) and frame.data is not None:
        msgspec.json.decode(frame.data, type=Raw)


@given(st.binary() | st.text() | st.text().map(lambda text: "{" + text) | st.binary().map(lambda tail: b"{" + tail))
@example(b"\x81\xa3cid\xcf" + b"\xff" * 8)
def test_anything_decodes_to_some_frame(payload: str | bytes) -> None:
    check(decode(payload))


@given(maps)
def test_any_messagepack_map_decodes_to_some_frame(members: dict[str, object]) -> None:
    check(decode(msgpack.packb(members)))


@given(maps)
def test_any_json_object_decodes_to_some_frame(members: dict[str, object]) -> None:
    check(decode(json.dumps(members, default=repr, skipkeys=True)))


@given(maps, st.data())
def test_a_frame_cut_anywhere_decodes_to_some_frame(members: dict[str, object], data: st.DataObject) -> None:
    packed = msgpack.packb(members)
    check(decode(packed[: data.draw(st.integers(0, len(packed)))]))
    text = json.dumps(members, default=repr, skipkeys=True)
    check(decode(text[: data.draw(st.integers(0, len(text)))]))
