"""Frames that carry a stream: the same content as the reader of whole messages has, however it comes."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.limits import PACKETS_PER_TURN
from protocols.websocket.streamed import StreamReader
from protocols.websocket.wire import FrameReader, PingFrame, WireError
from tests.protocols.websocket.test_wire import BINARY, CLOSE, PING, TEXT, frame
from tests.rows import each_row

CONTENT = st.binary(max_size=300)


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    """A message in one frame or several, with control frames between them."""
    parts = draw(st.lists(CONTENT, min_size=1, max_size=4))
    sent = b""
    for number, part in enumerate(parts):
        first = (0x00 if number else 0x02) | (0x80 if number == len(parts) - 1 else 0)
        sent += frame(first, part, mask=draw(st.binary(min_size=4, max_size=4)))
        sent += draw(st.sampled_from([b"", frame(PING, b"1"), frame(0x8A)]))
    return sent


@given(st.lists(messages(), max_size=4), st.lists(st.integers(0, 3_000), max_size=6))
def test_the_same_content_however_it_comes(sent: list[bytes], cuts: list[int]) -> None:
    data = b"".join(sent)
    reader, content, controls = StreamReader(), b"", []
    for begin, end in pairwise(sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})):
        received = reader.feed(data[begin:end])
        content += b"".join(one for one in received.messages if isinstance(one, bytes))
        controls += received.controls
    whole = FrameReader(limit=1_000_000).feed(data)
    assert content == b"".join(one for one in whole.messages if isinstance(one, bytes))
    assert controls == whole.controls


def test_nothing_of_a_frame_is_kept_and_none_is_too_long() -> None:
    reader = StreamReader()
    head = b"\x82\xff" + (1 << 40).to_bytes(8) + bytes(4)
    assert reader.feed(head + b"abc").messages == [b"abc"]
    assert reader.feed(b"d" * 100_000).messages == [b"d" * 100_000]
    assert len(reader._buffer) == 0


def test_many_frames_come_in_turns() -> None:
    reader = StreamReader()
    found = reader.feed(frame(BINARY, b"x") * (2 * PACKETS_PER_TURN) + frame(PING))
    assert (len(found.messages), found.fragments, reader.is_behind) == (PACKETS_PER_TURN, PACKETS_PER_TURN, True)
    assert len(reader.feed(b"").messages) == PACKETS_PER_TURN
    assert reader.feed(b"").controls == [PingFrame(b"")]
    assert not reader.is_behind


def test_a_text_frame_is_seen_before_its_content() -> None:
    assert StreamReader().feed(frame(TEXT, b"x" * 200)[:6]).messages == [""]


@each_row(
    ("data", "code"),
    [
        (b"\x82\x01x", 1002),  # without a mask
        (frame(0xC2), 1002),  # a reserved bit
        (frame(0xC9), 1002),
        (frame(0x83), 1002),  # opcodes that are not there
        (frame(0x8B), 1002),
        (frame(0x80), 1002),  # goes on with nothing
        (frame(0x02, b"x") + frame(BINARY), 1002),  # begins in the midst of a message
        (frame(0x09), 1002),  # a control frame in parts
        (frame(PING, bytes(126)), 1002),
        (b"\x82\xfe\x00\x05" + bytes(4), 1002),  # a length not in its shortest form
        (b"\x82\xff\xff" + bytes(11), 1002),  # beyond 63 bits
        (frame(CLOSE, b"\x03"), 1002),
        (frame(CLOSE, b"\x03\xe8\xff"), 1007),
    ],
)
def test_what_breaks_the_protocol(data: bytes, code: int) -> None:
    with pytest.raises(WireError) as raised:
        StreamReader().feed(frame(BINARY, b"before") * (data[0] != 0x80) + data)
    assert raised.value.code == code
