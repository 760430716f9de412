"""Frames as bytes: the rules of RFC 6455 for a client, with wsproto as an independent peer."""

import struct
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wsproto.connection import Connection as Oracle
from wsproto.connection import ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Message, TextMessage
from wsproto.events import Ping as OraclePing
from wsproto.events import Pong as OraclePong

from config.limits import PACKETS_PER_TURN
from protocols.websocket.wire import (
    NO_CODE,
    CloseFrame,
    FrameReader,
    PingFrame,
    PongFrame,
    Received,
    WireError,
    encode_close_frame,
    encode_frame,
    encode_frames,
    encode_ping_frame,
    encode_pong_frame,
)
from tests.rows import each_row

TEXT, BINARY, CLOSE, PING, PONG = 0x81, 0x82, 0x88, 0x89, 0x8A
MASK = b"\x37\xfa\x21\x3d"
LIMIT = 64 * 1024


def frame(first: int, payload: bytes = b"", *, mask: bytes = MASK, head: bytes | None = None) -> bytes:
    """A client's frame; `head` replaces the length bytes."""
    length = len(payload)
    if head is None:
        if length < 126:
            head = bytes((0x80 | length,))
        elif length < 65536:
            head = b"\xfe" + struct.pack("!H", length)
        else:
            head = b"\xff" + struct.pack("!Q", length)
    return bytes((first,)) + head + mask + bytes(byte ^ mask[index & 3] for index, byte in enumerate(payload))


def read(*chunks: bytes) -> Received:
    reader = FrameReader()
    messages: list[str | bytes] = []
    controls = []
    for chunk in chunks:
        received = reader.feed(chunk)
        messages += received.messages
        controls += received.controls
    return Received(messages, list(controls))


MESSAGES = [
    pytest.param(frame(TEXT), "", id="empty text"),
    pytest.param(frame(BINARY), b"", id="empty binary"),
    pytest.param(frame(TEXT, b"hello"), "hello", id="text"),
    pytest.param(frame(BINARY, b"\x00\xff"), b"\x00\xff", id="binary"),
    pytest.param(frame(TEXT, b"x" * 125), "x" * 125, id="longest short length"),
    pytest.param(frame(TEXT, b"x" * 126), "x" * 126, id="shortest 16-bit length"),
    pytest.param(frame(TEXT, b"x" * 65535), "x" * 65535, id="longest 16-bit length"),
    pytest.param(frame(TEXT, b"x" * 65536), "x" * 65536, id="64-bit length, and all that is allowed"),
    pytest.param(frame(TEXT, b"zero", mask=bytes(4)), "zero", id="mask of zeros"),
    pytest.param(frame(0x01, b"a") + frame(0x00, b"b") + frame(0x80, b"c"), "abc", id="fragments"),
    pytest.param(frame(0x02, b"a") + frame(0x80, b""), b"a", id="empty last fragment"),
    pytest.param(frame(0x01, "ä".encode()[:1]) + frame(0x80, "ä".encode()[1:]), "ä", id="UTF-8 across fragments"),
    pytest.param(frame(0x01, b"a") + frame(PING, b"?") + frame(0x80, b"b"), "ab", id="PingFrame between fragments"),
]


@each_row(("data", "message"), MESSAGES)
def test_a_message_is_read_whole_or_byte_by_byte(data: bytes, message: str | bytes) -> None:
    assert read(data).messages == [message]
    if len(data) < 1000:
        assert read(*(data[index : index + 1] for index in range(len(data)))).messages == [message]


def test_complete_frames_of_one_read_are_returned_in_order() -> None:
    reader = FrameReader()
    data = b"".join(frame(TEXT, str(number).encode()) for number in range(100))
    assert reader.feed(data[:-3]).messages == [str(number) for number in range(99)]
    assert reader.feed(data[-3:]).messages == ["99"]


@pytest.mark.parametrize("one", [frame(PING), frame(TEXT)])
def test_one_turn_has_a_bounded_number_of_frames_and_the_rest_stands_for_the_next(one: bytes) -> None:
    reader = FrameReader()
    counts = []
    data = one * (2 * PACKETS_PER_TURN + 1)
    while data or reader.is_behind:
        received = reader.feed(data)
        counts.append(len(received.messages) + len(received.controls))
        data = b""
    assert counts == [PACKETS_PER_TURN, PACKETS_PER_TURN, 1]


def test_fragments_count_as_frames_of_a_turn() -> None:
    reader = FrameReader()
    received = reader.feed(frame(0x01) + frame(0x00) * (PACKETS_PER_TURN - 1) + frame(0x80, b"end"))
    assert (received.messages, received.fragments) == ([], PACKETS_PER_TURN)
    assert reader.feed(b"").messages == ["end"]


CONTROLS = [
    (frame(PING, b"x"), PingFrame(b"x")),
    (frame(PING, b"x" * 125), PingFrame(b"x" * 125)),
    (frame(PONG), PongFrame(b"")),
    (frame(CLOSE), CloseFrame(NO_CODE, "")),
    (frame(CLOSE, b"\x03\xe8"), CloseFrame(1000, "")),
    (frame(CLOSE, b"\x03\xe8bye"), CloseFrame(1000, "bye")),
    (frame(CLOSE, b"\x13\x87"), CloseFrame(4999, "")),  # reference 19.1
]


@each_row(("data", "control"), CONTROLS)
def test_control_frames(data: bytes, control: object) -> None:
    assert read(data) == Received([], [control])  # type: ignore[list-item]


def test_bytes_after_a_close_frame_are_ignored() -> None:
    assert read(frame(TEXT, b"a") + frame(CLOSE) + frame(TEXT, b"b") + b"\xff\xff") == Received(
        ["a"], [CloseFrame(NO_CODE, "")]
    )


FAULTS = [
    pytest.param(b"\x81\x05hello", 1002, id="no mask"),
    pytest.param(frame(TEXT | 0x40), 1002, id="RSV1: compression was not agreed on"),
    pytest.param(frame(TEXT | 0x20), 1002, id="RSV2"),
    pytest.param(frame(TEXT | 0x10), 1002, id="RSV3"),
    pytest.param(frame(PING | 0x40), 1002, id="RSV1 of a control frame"),
    pytest.param(frame(0x83), 1002, id="reserved data opcode"),
    pytest.param(frame(0x8B), 1002, id="reserved control opcode"),
    pytest.param(frame(0x09), 1002, id="fragmented Ping"),
    pytest.param(frame(PING, b"x" * 126), 1002, id="PingFrame too long"),
    pytest.param(frame(CLOSE, b"x" * 126), 1002, id="CloseFrame too long"),
    pytest.param(frame(0x80, b"x"), 1002, id="continues nothing"),
    pytest.param(frame(0x00, b"x"), 1002, id="continues nothing, and goes on"),
    pytest.param(frame(0x01, b"x") + frame(TEXT, b"y"), 1002, id="text inside a fragmented message"),
    pytest.param(frame(0x01, b"x") + frame(0x02, b"y"), 1002, id="fragments of two messages"),
    pytest.param(frame(TEXT, b"x", head=b"\xfe\x00\x01"), 1002, id="short length in 16 bits"),
    pytest.param(frame(TEXT, b"x" * 200, head=b"\xff" + struct.pack("!Q", 200)), 1002, id="16-bit length in 64 bits"),
    pytest.param(frame(CLOSE, b"x"), 1002, id="half a close code"),
    *(
        pytest.param(frame(CLOSE, struct.pack("!H", code)), 1002, id=f"close code {code}")
        for code in (0, 999, 1004, 1005, 1006, 1015, 1016, 2999, 5000, 65535)
    ),
    pytest.param(frame(CLOSE, b"\x03\xe8\xff"), 1007, id="close reason not UTF-8"),
    pytest.param(frame(TEXT, b"\xff"), 1007, id="not UTF-8"),
    pytest.param(frame(TEXT, b"\xed\xa0\x80"), 1007, id="surrogate"),
    pytest.param(frame(0x01, b"\xc3") + frame(0x80, b"x"), 1007, id="not UTF-8 across fragments"),
    pytest.param(frame(TEXT, b"x" * (LIMIT + 1))[:14], 1009, id="too long: its head is enough"),
    pytest.param(frame(BINARY, head=b"\xff" + b"\xff" * 8), 1009, id="absurdly long"),
    pytest.param(frame(0x01, b"x" * LIMIT) + frame(0x80, b"x")[:2], 1009, id="fragments too long together"),
]


@each_row(("data", "code"), FAULTS)
def test_fault(data: bytes, code: int) -> None:
    with pytest.raises(WireError) as fault:
        FrameReader().feed(frame(TEXT, b"before") + data)
    assert fault.value.code == code
    assert (fault.value.received.messages, fault.value.received.controls) == (["before"], [])
    with pytest.raises(WireError) as again:
        read(*(data[index : index + 1] for index in range(min(len(data), 300))), data[300:])
    assert again.value.code == code


# --- wsproto as the other end ---

_MESSAGES = st.lists(st.one_of(st.text(max_size=300), st.binary(max_size=300)), max_size=8)


@given(_MESSAGES, st.data())
def test_what_wsproto_writes_is_read_in_pieces_of_any_size(messages: list[str | bytes], data: st.DataObject) -> None:
    oracle = Oracle(ConnectionType.CLIENT)
    sent = b""
    for message in messages:
        cut = data.draw(st.integers(0, len(message)))
        sent += _written(oracle, message[:cut], last=False)
        if data.draw(st.booleans()):
            sent += oracle.send(OraclePing(b"in between"))
        sent += _written(oracle, message[cut:], last=True)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=5)))
    chunks = [sent[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(sent)], strict=True)]
    assert read(*chunks).messages == messages


def _written(oracle: Oracle, part: str | bytes, *, last: bool) -> bytes:
    if isinstance(part, str):
        return oracle.send(TextMessage(part, message_finished=last))
    return oracle.send(BytesMessage(part, message_finished=last))


@each_row("length", [0, 1, 125, 126, 65535, 65536, 70_000])
def test_wsproto_reads_what_is_written(length: int) -> None:
    for one in ("x" * length, b"x" * length, "ä" * length):
        parts = [event.data for event in _as_seen_by_wsproto(encode_frame(one)) if isinstance(event, Message)]
        assert type(one)().join(parts) == one


_LENGTHS = st.sampled_from([0, 1, 125, 126, 1023, 1024, 65535, 65536])


@given(
    st.lists(
        st.text()
        | st.binary()
        | st.builds(lambda length: "x" * length, _LENGTHS)
        | st.builds(lambda length: "\xe9" * length, _LENGTHS)
    )
)
def test_frames_that_are_written_together_are_those_that_are_written_alone(payloads: list[str | bytes]) -> None:
    assert encode_frames(payloads) == b"".join(map(encode_frame, payloads))


def test_wsproto_reads_control_frames() -> None:
    ping, pong, close = _as_seen_by_wsproto(
        encode_ping_frame(b"1") + encode_pong_frame(b"2") + encode_close_frame(1013, "slow")
    )
    assert ping == OraclePing(b"1")
    assert pong == OraclePong(b"2")
    assert close == CloseConnection(1013, "slow")


def test_a_close_reason_is_cut_between_characters() -> None:
    (close,) = _as_seen_by_wsproto(encode_close_frame(1008, "ä" * 100))
    assert close == CloseConnection(1008, "ä" * 61)


def test_a_close_without_a_code_is_empty() -> None:
    assert encode_close_frame(NO_CODE, "not sent") == b"\x88\x00"


def _as_seen_by_wsproto(data: bytes) -> Iterable[object]:
    oracle = Oracle(ConnectionType.CLIENT)
    oracle.receive_data(data)
    return list(oracle.events())
