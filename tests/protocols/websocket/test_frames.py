"""Frames of the device channel: forms that clients may write, and the server's frames, byte for byte."""

import json
import math
from collections.abc import Callable
from typing import cast

import msgpack
import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import Raw

from broker.errors import BadRequest, DomainError, PermissionDenied, ValidationFailed
from config.limits import JSON_NESTING_MAX
from protocols.websocket.errors import WrongCid
from protocols.websocket.frames import (
    NOT_A_TIME,
    ActionFrame,
    ClientFrame,
    FrameForm,
    ListFrame,
    MessageFrame,
    RefusedFrame,
    RegisterFrame,
    UnregisterFrame,
    acknowledgement,
    decode_client_frame,
    device_list,
    error_frame,
    ping,
    stored,
    token_in,
)
from tests.rows import each_row

TOKEN = "2" * 32
MID = "3" * 32

# The forms in which one and the same frame may arrive.
WRITTEN = [
    pytest.param(lambda members: json.dumps(members, ensure_ascii=False), FrameForm.JSON, id="text"),
    pytest.param(lambda members: json.dumps(members).encode(), FrameForm.JSON, id="binary JSON"),
    pytest.param(msgpack.packb, FrameForm.MESSAGE_PACK, id="MessagePack by msgpack"),
    pytest.param(msgspec.msgpack.encode, FrameForm.MESSAGE_PACK, id="MessagePack by msgspec"),
]

FRAMES = [
    (
        {"type": "register", "sdid": "d", "Authorization": f"bearer {TOKEN}", "cid": "c"},
        RegisterFrame("d", TOKEN, "c"),
    ),
    ({"type": "register", "sdid": "d", "authorization": TOKEN}, RegisterFrame("d", TOKEN)),
    ({"type": "register", "sdid": "d"}, RegisterFrame("d", None)),
    ({"type": "register", "sdid": "d", "Authorization": None, "authorization": TOKEN}, RegisterFrame("d", TOKEN)),
    ({"type": "register", "sdid": "d", "Authorization": ""}, RegisterFrame("d", "")),
    ({"type": "register", "sdid": "d", "Authorization": 5}, RegisterFrame("d", "")),
    ({"type": "register", "sdid": 5, "Authorization": TOKEN}, RegisterFrame("", TOKEN)),
    ({"type": "register"}, RegisterFrame(None, None)),
    ({"type": "unregister", "sdid": "d", "cid": "c"}, UnregisterFrame("d", "c")),
    ({"type": "unregister", "sdid": ["d"]}, UnregisterFrame("")),
    ({"type": "list"}, ListFrame()),
    ({"type": "list", "cid": None, "sdid": 5, "ddid": {}, "ts": "x", "data": 1, "unknown": [1]}, ListFrame()),
    ({"type": "message", "sdid": "d", "data": {"a": 1}}, MessageFrame("d", Raw(b'{"a":1}'))),
    ({"type": "MESSAGE", "data": {"a": 1}}, MessageFrame(None, Raw(b'{"a":1}'))),
    ({"data": {"a": 1}, "ts": 5, "cid": "c"}, MessageFrame(None, Raw(b'{"a":1}'), 5, "c")),
    ({"type": None, "sdid": None, "data": "text", "ts": None}, MessageFrame(None, Raw(b'"text"'))),
    ({"data": '{"a":1}'}, MessageFrame(None, Raw(b'"{\\"a\\":1}"'))),
    ({"type": "message", "ddid": "t", "data": {"actions": []}}, MessageFrame(None, Raw(b'{"actions":[]}'))),
    ({"data": None}, MessageFrame(None, None)),
    ({}, MessageFrame(None, None)),
    (
        {"type": "action", "sdid": "d", "ddid": "t", "data": {"actions": [1]}, "ts": 5, "cid": "c"},
        ActionFrame("d", "t", Raw(b'{"actions":[1]}'), 5, "c"),
    ),
    ({"type": "Action", "data": {}}, ActionFrame(None, None, Raw(b"{}"))),
    ({"type": "action", "ddid": 7, "data": {}}, ActionFrame(None, "", Raw(b"{}"))),
    # Without `type` it is an Action when it has `ddid` and `data.actions`, otherwise a message.
    ({"ddid": "t", "data": {"actions": []}}, ActionFrame(None, "t", Raw(b'{"actions":[]}'))),
    ({"ddid": "t", "data": '{"actions":[]}'}, ActionFrame(None, "t", Raw(b'"{\\"actions\\":[]}"'))),
    ({"ddid": "t", "data": {"actions": None}}, MessageFrame(None, Raw(b'{"actions":null}'))),
    ({"ddid": "t", "data": {"a": 1}}, MessageFrame(None, Raw(b'{"a":1}'))),
    ({"ddid": "t", "data": "actions"}, MessageFrame(None, Raw(b'"actions"'))),
    ({"ddid": "t", "data": [1]}, MessageFrame(None, Raw(b"[1]"))),
    ({"ddid": "t"}, MessageFrame(None, None)),
    ({"ddid": None, "data": {"actions": []}}, MessageFrame(None, Raw(b'{"actions":[]}'))),
    ({"data": {"actions": []}}, MessageFrame(None, Raw(b'{"actions":[]}'))),
]


def compact(frame: ClientFrame) -> ClientFrame:
    """The frame with `data` as compact JSON."""
    if isinstance(frame, MessageFrame | ActionFrame) and frame.data is not None:
        return msgspec.structs.replace(frame, data=Raw(msgspec.json.format(bytes(frame.data), indent=-1)))
    return frame


@each_row(("write", "form"), WRITTEN)
@each_row(("members", "frame"), FRAMES)
def test_frame(members: object, frame: ClientFrame, write: object, form: FrameForm) -> None:
    assert callable(write)
    assert compact(decode_client_frame(write(members))) == msgspec.structs.replace(frame, form=form)


def test_what_json_has_not_is_kept_for_the_manifest_to_drop() -> None:
    """Issue 44, 6: a number that is not finite, and half of a surrogate pair."""
    data = {"d": math.nan, "e": [-math.inf, None], "i": 1, "t": "\ud800"}
    frame = decode_client_frame(msgpack.packb({"data": data}, unicode_errors="surrogatepass"))
    assert frame == MessageFrame(
        None, Raw(b'{"d":"NaN","e":["-Infinity",null],"i":1,"t":"\\ud800"}'), form=FrameForm.MESSAGE_PACK
    )
    alone = decode_client_frame(msgpack.packb({"data": math.inf}))
    assert alone == MessageFrame(None, Raw(b'"Infinity"'), form=FrameForm.MESSAGE_PACK)


def test_an_action_with_a_number_that_is_not_finite_is_refused_by_name() -> None:
    actions = {"actions": [{"name": "setOn", "parameters": {"level": math.nan}}]}
    frame = decode_client_frame(msgpack.packb({"ddid": "t", "data": actions, "cid": "c"}))
    assert isinstance(frame, RefusedFrame)
    assert isinstance(frame.error, ValidationFailed)
    assert [finding.field for finding in frame.error.findings] == ["data.actions.0.parameters.level"]


def test_data_is_kept_as_it_was_written() -> None:
    frame = decode_client_frame('{"data": { "a" : 1.50, "\\u00e9": [ ] }}')
    assert frame == MessageFrame(None, Raw(b'{ "a" : 1.50, "\\u00e9": [ ] }'))


@each_row(
    ("ts", "value"),
    [
        ("1472794753437", 1472794753437),
        ("1472794753437.9", 1472794753437.9),
        ("-1", -1),
        ("null", None),
        ("123456789012345678901234567890", 123456789012345678901234567890),
        ("1e400", NOT_A_TIME),
        ('"1472794753437"', "1472794753437"),
        ('""', ""),
        ("true", NOT_A_TIME),
        ("{}", NOT_A_TIME),
        ("[1]", NOT_A_TIME),
    ],
)
def test_ts_passes_as_a_number_or_as_one_that_ingest_refuses(ts: str, value: float | str | None) -> None:
    assert decode_client_frame(f'{{"data":{{}},"ts":{ts},"cid":"c"}}') == MessageFrame(None, Raw(b"{}"), value, "c")


@each_row(
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
    assert decode_client_frame(f'{{"type":"list","cid":{cid}}}') == ListFrame(echoed)


@each_row(
    "cid",
    ["{}", "[]", '["c"]', "true", "false", json.dumps("é" * 257), "1" * 257, "-" + "1" * 4300, "1" * 4301, "1" * 9999],
)
@each_row("kind", ["register", "unregister", "list", "message", "action"])
def test_wrong_cid(cid: str, kind: str) -> None:
    frame = decode_client_frame(f'{{"type":"{kind}","data":{{}},"cid":{cid}}}')
    assert isinstance(frame, RefusedFrame)
    assert isinstance(frame.error, WrongCid)
    assert (frame.kind, frame.cid) == (kind, None)


@pytest.mark.parametrize(
    ("cid", "echoed"), [(7, "7"), (2**64 - 1, "18446744073709551615"), (-7, "-7"), (1.5, "1.5"), ("é", "é")]
)
def test_cid_in_messagepack(cid: object, echoed: str) -> None:
    assert decode_client_frame(msgpack.packb({"type": "list", "cid": cid})) == ListFrame(echoed, FrameForm.MESSAGE_PACK)


@each_row("cid", [b"c", float("nan"), float("inf"), {}, [], True])
def test_wrong_cid_in_messagepack(cid: object) -> None:
    frame = decode_client_frame(msgpack.packb({"type": "list", "cid": cid}))
    assert isinstance(frame, RefusedFrame)
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


@each_row("payload", UNREADABLE)
def test_bad_request(payload: str | bytes) -> None:
    frame = decode_client_frame(payload)
    assert isinstance(frame, RefusedFrame)
    assert isinstance(frame.error, BadRequest)


AT_THE_LIMIT = JSON_NESTING_MAX - 1  # the object of the frame is a level, too


def json_of(member: str, levels: int) -> str:
    return json.dumps({"type": "message", member: 0}).replace("0", "[" * levels + "]" * levels)


def json_bytes_of(member: str, levels: int) -> bytes:
    return json_of(member, levels).encode()


def message_pack_of(member: str, levels: int) -> bytes:
    before = cast("bytes", msgpack.packb({"type": "message", member: None}))[:-1]
    return before + b"\x91" * levels + b"\xc0"


@each_row("member", ["data", "unknown"])
@each_row("write", [json_of, json_bytes_of, message_pack_of])
def test_a_frame_nests_as_deep_as_the_limit_and_no_deeper(
    write: Callable[[str, int], str | bytes], member: str
) -> None:
    assert isinstance(decode_client_frame(write(member, AT_THE_LIMIT)), MessageFrame)
    refused = decode_client_frame(write(member, AT_THE_LIMIT + 1))
    assert isinstance(refused, RefusedFrame)
    assert isinstance(refused.error, BadRequest)


def test_messagepack_with_many_values_that_do_not_nest() -> None:
    many = {"type": "list", "unknown": [[[], {}], {"a": [0.5, "x" * 40, None]}] * JSON_NESTING_MAX}
    assert isinstance(decode_client_frame(msgpack.packb(many)), ListFrame)


def test_an_unknown_type_is_refused_with_its_cid() -> None:
    frame = decode_client_frame('{"type":"subscribe","cid":7}')
    assert isinstance(frame, RefusedFrame)
    assert (frame.kind, frame.cid) == (None, "7")


@each_row(
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
    assert token_in(authorization) == token


DENIED = PermissionDenied("WRITE on device 1234")

SERVER_FRAMES = [
    (acknowledgement, (), '{"data":{"message":"OK","code":"200"}}'),
    (device_list, (("a", "b"),), '{"data":{"message":["a","b"],"code":"200"}}'),
    (device_list, ((),), '{"data":{"message":[],"code":"200"}}'),
    (stored, (MID,), f'{{"data":{{"mid":"{MID}"}}}}'),
    (error_frame, (DENIED,), '{"error":{"code":403,"message":"You do not have the right permission: devices"}}'),
]


@each_row(("cid", "member"), [(None, ""), ("7", ',"cid":"7"'), ("", ',"cid":""'), ('"é', ',"cid":"\\"é"')])
@each_row(("render", "arguments", "text"), SERVER_FRAMES)
def test_server_frame(render: object, arguments: tuple[object, ...], text: str, cid: str | None, member: str) -> None:
    assert callable(render)
    expected = text[:-2] + member + "}}"
    assert render(*arguments, cid, FrameForm.JSON) == expected
    packed = render(*arguments, cid, FrameForm.MESSAGE_PACK)
    assert isinstance(packed, bytes)
    assert msgpack.unpackb(packed) == json.loads(expected)


def test_ping() -> None:
    assert ping(1507328677960, FrameForm.JSON) == '{"type":"ping","ts":1507328677960}'
    assert msgpack.unpackb(cast("bytes", ping(5, FrameForm.MESSAGE_PACK))) == {"type": "ping", "ts": 5}


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
    if isinstance(frame, RefusedFrame):
        assert isinstance(frame.error, DomainError)
    if isinstance(frame, MessageFrame | ActionFrame) and frame.data is not None:
        msgspec.json.decode(frame.data, type=Raw)


@given(st.binary() | st.text() | st.text().map(lambda text: "{" + text) | st.binary().map(lambda tail: b"{" + tail))
@example(b"\x81\xa3cid\xcf" + b"\xff" * 8)
def test_anything_decodes_to_some_frame(payload: str | bytes) -> None:
    check(decode_client_frame(payload))


@given(maps)
def test_any_messagepack_map_decodes_to_some_frame(members: dict[str, object]) -> None:
    check(decode_client_frame(msgpack.packb(members)))


@given(maps)
def test_any_json_object_decodes_to_some_frame(members: dict[str, object]) -> None:
    check(decode_client_frame(json.dumps(members, default=repr, skipkeys=True)))


@given(maps, st.data())
def test_a_frame_cut_anywhere_decodes_to_some_frame(members: dict[str, object], data: st.DataObject) -> None:
    packed = msgpack.packb(members)
    check(decode_client_frame(packed[: data.draw(st.integers(0, len(packed)))]))
    text = json.dumps(members, default=repr, skipkeys=True)
    check(decode_client_frame(text[: data.draw(st.integers(0, len(text)))]))
