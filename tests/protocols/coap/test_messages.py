"""The codec of messages: compared with aiocoap's for well-formed messages, with RFC 7252 for malformed ones."""

import aiocoap
import pytest
from aiocoap.numbers.optionnumbers import OptionNumber
from aiocoap.optiontypes import OpaqueOption
from hypothesis import given
from hypothesis import strategies as st

from protocols.coap.messages import (
    ACK,
    CON,
    NON,
    RST,
    CoapMessage,
    Code,
    MalformedMessage,
    Option,
    decode_message,
    empty,
    frame,
    uint,
)
from tests.protocols.coap.peers import encode_message
from tests.rows import each_row

#: aiocoap keeps every option number for ever, so the tests use registered ones.
_OPAQUE = (Option.ETAG, Option.ECHO, Option.REQUEST_TAG, Option.IF_MATCH)

tokens = st.binary(max_size=8)
payloads = st.binary(max_size=80)
options = st.lists(st.tuples(st.sampled_from(_OPAQUE), st.binary(max_size=300)), max_size=6).map(
    lambda found: tuple(sorted(((int(number), value) for number, value in found), key=lambda one: one[0]))
)
messages = st.builds(
    CoapMessage,
    type=st.sampled_from((CON, NON, ACK)),
    code=st.sampled_from((Code.GET, Code.POST, Code.CREATED, Code.CONTENT)).map(int),
    message_id=st.integers(0, 0xFFFF),
    token=tokens,
    options=options,
    payload=payloads,
)


def _oracle(message: CoapMessage) -> aiocoap.Message:
    theirs = aiocoap.Message(
        code=message.code, _mtype=message.type, _mid=message.message_id, _token=message.token, payload=message.payload
    )
    for number, value in message.options:
        theirs.opt.add_option(OpaqueOption(OptionNumber(number), value))
    return theirs


@given(messages)
def test_encodes_as_aiocoap_does(message: CoapMessage) -> None:
    assert encode_message(message) == _oracle(message).encode()


@given(messages)
def test_decodes_what_aiocoap_encodes(message: CoapMessage) -> None:
    assert decode_message(_oracle(message).encode()) == message


@given(messages)
def test_aiocoap_decodes_what_is_encoded(message: CoapMessage) -> None:
    theirs = aiocoap.Message.decode(encode_message(message))
    assert (theirs.mtype, theirs.code, theirs.mid) == (message.type, message.code, message.message_id)
    assert (theirs.token, theirs.payload) == (message.token, message.payload)
    assert tuple((int(one.number), one.encode()) for one in theirs.opt.option_list()) == message.options


@given(st.binary(max_size=120))
def test_any_bytes_are_a_message_or_malformed(datagram: bytes) -> None:
    try:
        assert decode_message(datagram).least_bytes <= len(datagram)
    except MalformedMessage as malformed:
        answer = malformed.answer
    else:
        return
    assert answer in (None, empty(RST, int.from_bytes(datagram[2:4], "big")))


HEAD = bytes.fromhex("40021234")


@each_row(
    ("datagram", "rejected"),
    [
        pytest.param(b"", False, id="nothing"),
        pytest.param(HEAD[:3], False, id="three bytes"),
        pytest.param(b"\x00" + HEAD[1:], False, id="version 0 is ignored, though confirmable"),
        pytest.param(b"\x80" + HEAD[1:], False, id="version 2"),
        pytest.param(b"\x49" + HEAD[1:] + bytes(9), True, id="a token of 9 bytes"),
        pytest.param(b"\x4f" + HEAD[1:] + bytes(15), True, id="a token of 15 bytes"),
        pytest.param(b"\x59" + HEAD[1:] + bytes(9), False, id="a token of 9 bytes, not confirmable"),
        pytest.param(b"\x44" + HEAD[1:] + b"ab", True, id="a token cut short"),
        pytest.param(HEAD + b"\xff", True, id="a marker without payload"),
        pytest.param(HEAD + b"\xb4v1", True, id="an option cut short"),
        pytest.param(HEAD + b"\xbd", True, id="an extended length cut short"),
        pytest.param(HEAD + b"\xbe\x01", True, id="a longer extended length cut short"),
        pytest.param(HEAD + b"\xf1a", True, id="a reserved delta"),
        pytest.param(HEAD + b"\xbf" + b"a" * 20, True, id="a reserved length"),
        pytest.param(HEAD + b"\xe0\xff\xff", True, id="an option number over 65,535"),
        pytest.param(b"\x40\x00\x12\x34\xff", True, id="an empty message that is not empty"),
        pytest.param(b"\x41\x00\x12\x34a", True, id="an empty message with a token"),
        pytest.param(b"\x40\x21\x12\x34", True, id="reserved class 1"),
        pytest.param(b"\x40\xc1\x12\x34", True, id="reserved class 6"),
        pytest.param(b"\x40\xe1\x12\x34", True, id="class 7, which is TCP's"),
        pytest.param(b"\x60\xe1\x12\x34", False, id="an ACK of a reserved class"),
    ],
)
def test_malformed(datagram: bytes, rejected: bool) -> None:
    with pytest.raises(MalformedMessage) as caught:
        decode_message(datagram)
    assert caught.value.answer == (bytes.fromhex("70001234") if rejected else None)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(((11, b"v1.1"), (12, b"\x32")), id="no byte like the marker"),
        pytest.param(((11, b"\xff"), (11, b"\xffa\xff")), id="markers within options"),
        pytest.param(((11, b"a"), (11, b"")), id="an empty one before the marker"),
        pytest.param(((11, b"a" * 300),), id="long"),
        pytest.param(((11 + 269 + 0xFF, b"a"),), id="a marker within an option number"),
    ],
)
def test_cached_options_are_decoded_alike(options: tuple[tuple[int, bytes], ...]) -> None:
    """The cache is by the bytes of the options, whatever the payload is."""
    for payload in (b"\xff", b"a", b"\xb1a\xffb", b""):
        message = CoapMessage(CON, Code.POST, 7, b"tok", options, payload)
        assert decode_message(encode_message(message)) == message
    for cut in range(1, 4):
        with pytest.raises(MalformedMessage):
            decode_message(encode_message(CoapMessage(CON, Code.POST, 7, b"tok", ((11, b"v1.1"),)))[:-cut])


def test_unknown_option_numbers_are_not_kept() -> None:
    known = len(OptionNumber._value2member_map_)
    for number in range(3000, 3100):
        assert decode_message(HEAD + b"\xe1" + (number - 269).to_bytes(2, "big") + b"x").options == ((number, b"x"),)
    assert len(OptionNumber._value2member_map_) == known


@pytest.mark.parametrize(
    ("value", "encoded"), [(0, b""), (1, b"\1"), (255, b"\xff"), (256, b"\1\0"), (65_536, b"\1\0\0")]
)
def test_uint(value: int, encoded: bytes) -> None:
    assert uint(value) == encoded


def test_frame_without_payload_has_no_marker() -> None:
    assert frame(ACK, Code.CREATED, 7, b"ab", b"\xc1\x32") == bytes.fromhex("62410007") + b"ab\xc1\x32"
