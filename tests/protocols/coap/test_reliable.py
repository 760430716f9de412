"""CoAP over TCP (RFC 8323, 3.2), compared with aiocoap's framing."""

import aiocoap
import pytest
from aiocoap.transports import tcp
from hypothesis import given
from hypothesis import strategies as st

from protocols.coap.messages import Option, encode_options
from protocols.coap.reliable import MESSAGE_BYTES, CoapFrameReader, MalformedFrame, encode_coap_frame

_payloads = st.sampled_from([0, 1, 12, 13, 14, 268, 269, 270, 5000]).map(bytes)


@given(_payloads, st.binary(max_size=8), st.lists(st.sampled_from(["rd", "x" * 13, "y" * 300]), max_size=3))
def test_frames_are_those_of_aiocoap(payload: bytes, token: bytes, path: list[str]) -> None:
    other = aiocoap.Message(code=aiocoap.POST, payload=payload, uri_path=path)
    other.token = token
    options = encode_options(tuple((int(Option.URI_PATH), one.encode()) for one in path))
    frame = encode_coap_frame(aiocoap.POST, token, options, payload)
    assert frame == tcp._serialize(other)
    (message,) = CoapFrameReader().feed(frame)
    assert (message.code, message.token, message.payload) == (aiocoap.POST, token, payload)
    assert [value.decode() for _, value in message.options] == path


def test_a_frame_of_64_kib_has_four_bytes_of_length() -> None:
    frame = encode_coap_frame(aiocoap.CONTENT, b"t", b"", bytes(MESSAGE_BYTES - 1))
    assert frame[0] >> 4 == 14
    (message,) = CoapFrameReader().feed(frame)
    assert len(message.payload) == MESSAGE_BYTES - 1
    with pytest.raises(MalformedFrame, match="more than 65536 bytes"):
        CoapFrameReader().feed(encode_coap_frame(aiocoap.CONTENT, b"t", b"", bytes(MESSAGE_BYTES + 300)))


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=4), st.data())
def test_frames_are_cut_wherever_they_are_split(payloads: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(encode_coap_frame(aiocoap.CONTENT, b"tk", b"", payload) for payload in payloads)
    at = data.draw(st.integers(0, len(whole)))
    reader = CoapFrameReader()
    found = [*reader.feed(whole[:at]), *reader.feed(whole[at:])]
    assert [message.payload for message in found] == payloads


@given(st.binary(max_size=100))
def test_no_bytes_raise_anything_else(received: bytes) -> None:
    try:
        CoapFrameReader().feed(received)
    except MalformedFrame:
        return


@pytest.mark.parametrize("frame", [b"\x09\x01", b"\x10\x01\xff", b"\x10\x01\xf0"])
def test_what_cannot_be_read_ends_the_connection(frame: bytes) -> None:
    with pytest.raises(MalformedFrame):
        CoapFrameReader().feed(frame)
