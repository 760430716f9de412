"""Reading payloads that are not the Manifest's JSON."""

import base64
import struct
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.device_types.payload_formats import (
    BinaryField,
    BinaryFormat,
    CsvFormat,
    JsonFormat,
    KeyValueFormat,
    PayloadEncoding,
    PayloadFormat,
    PayloadUnreadableError,
    TextFormat,
    unwrap,
)
from tests.rows import each_row

CSV = CsvFormat(("t", "h", "s"))
BOARD = BinaryFormat(
    (
        BinaryField("t", "int16", scale=0.1, offset=-40),
        BinaryField("", "skip", 1),
        BinaryField("n", "uint8"),
        BinaryField("name", "text", 4),
        BinaryField("id", "bytes", 2),
        BinaryField("f", "float32"),
    )
)
BOARD_BYTES = struct.pack(">hxB4s2sf", 615, 200, b"ab", b"\x01\xff", 1.5)


@each_row(
    ("format_", "payload", "read"),
    [
        (TextFormat(), "21,5 °C".encode(), {"text": "21,5 °C"}),
        (JsonFormat(), b" [1, {}] ", [1, {}]),
        (CSV, b"21.5,40,on", {"t": "21.5", "h": "40", "s": "on"}),
        (CSV, b"\r\n 21.5 ,,\r\n", {"t": "21.5"}),
        (CSV, b'"a,""b""",2', {"t": 'a,"b"', "h": "2"}),
        (CSV, b",,", {}),
        (CsvFormat(("a", "b"), ";"), b"1,5;2", {"a": "1,5", "b": "2"}),
        (CsvFormat(("a", "b"), "\t"), b"1\t2", {"a": "1", "b": "2"}),
        (KeyValueFormat(), b"t=21.5; h = 40 ;", {"t": "21.5", "h": "40"}),
        (KeyValueFormat(), b"", {}),
        (KeyValueFormat(), b"a=1;a=b=2", {"a": "b=2"}),
        (KeyValueFormat("&", ":"), b"a:1&b:", {"a": "1", "b": ""}),
        (KeyValueFormat("\n", "="), b"a=1\nb=2\n", {"a": "1", "b": "2"}),
        (BOARD, BOARD_BYTES, {"t": 21.5, "n": 200, "name": "ab", "id": "01ff", "f": 1.5}),
        (BOARD, BOARD_BYTES + b"more", {"t": 21.5, "n": 200, "name": "ab", "id": "01ff", "f": 1.5}),
        (BinaryFormat((BinaryField("n", "uint16"),), little_endian=True), b"\x01\x02", {"n": 0x0201}),
        (BinaryFormat((BinaryField("n", "int8", scale=3),)), b"\xff", {"n": -3}),
        (BinaryFormat((BinaryField("n", "uint64"),)), b"\xff" * 8, {"n": 2**64 - 1}),
    ],
)
def test_read(format_: PayloadFormat, payload: bytes, read: object) -> None:
    assert format_.read(payload) == read


@each_row(
    ("format_", "payload", "reason"),
    [
        (TextFormat(), b"ab\xff", "not UTF-8 text: byte 2"),
        (JsonFormat(), b"{", "not JSON: "),
        (JsonFormat(), b"[" * 1024, "not JSON: more than 850 levels of arrays and objects"),
        (CSV, b"", "0 rows instead of one"),
        (CSV, b"1\n2", "2 rows instead of one"),
        (CSV, b"1,2,3,4", "4 cells for 3 columns"),
        (CSV, b'"open', "not CSV: "),
        (KeyValueFormat(), b"t", "no '=' in 't'"),
        (BOARD, BOARD_BYTES[:-1], "13 bytes instead of 14"),
        (BOARD, b"", "0 bytes instead of 14"),
        (BinaryFormat((BinaryField("s", "text", 1),)), b"\xff", "not UTF-8 text: byte 0"),
    ],
)
def test_what_cannot_be_read_says_why(format_: PayloadFormat, payload: bytes, reason: str) -> None:
    with pytest.raises(PayloadUnreadableError) as unreadable:
        format_.read(payload)
    assert str(unreadable.value).startswith(reason)


@pytest.mark.parametrize(
    ("payload", "encoding", "unwrapped"),
    [
        (b"\x00x", PayloadEncoding.RAW, b"\x00x"),
        (b"AAEC/w==", PayloadEncoding.BASE64, b"\x00\x01\x02\xff"),
        (b"AAEC\n/w==\n", PayloadEncoding.BASE64, b"\x00\x01\x02\xff"),
        (b"0001 fF", PayloadEncoding.HEX, b"\x00\x01\xff"),
        (b"", PayloadEncoding.HEX, b""),
    ],
)
def test_unwrapping(payload: bytes, encoding: PayloadEncoding, unwrapped: bytes) -> None:
    assert unwrap(payload, encoding) == unwrapped


@pytest.mark.parametrize(
    ("payload", "encoding"),
    [
        (b"AAE", PayloadEncoding.BASE64),
        (b"A$EC", PayloadEncoding.BASE64),
        (b"001", PayloadEncoding.HEX),
        (b"\xff", PayloadEncoding.HEX),
    ],
)
def test_invalid_encodings_are_named(payload: bytes, encoding: PayloadEncoding) -> None:
    with pytest.raises(PayloadUnreadableError, match=f"not {encoding.value}: "):
        unwrap(payload, encoding)


@given(values=st.lists(st.tuples(st.sampled_from(["b", "B", "h", "H", "i", "I", "q", "Q"]), st.data()), max_size=8))
def test_numbers_come_out_as_they_were_packed(values: list[tuple[str, Any]]) -> None:
    names = {"b": "int8", "B": "uint8", "h": "int16", "H": "uint16", "i": "int32", "I": "uint32", "q": "int64"}
    drawn = {}
    for index, (code, data) in enumerate(values):
        bits = struct.calcsize(code) * 8
        low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if code.islower() else (0, 2**bits - 1)
        drawn[f"f{index}"] = (code, data.draw(st.integers(low, high)))
    layout = tuple(BinaryField(name, names.get(code, "uint64")) for name, (code, _) in drawn.items())
    for order, little in ((">", False), ("<", True)):
        packed = struct.pack(order + "".join(code for code, _ in drawn.values()), *(n for _, n in drawn.values()))
        assert BinaryFormat(layout, little).read(packed) == {name: number for name, (_, number) in drawn.items()}


@pytest.mark.parametrize("format_", [TextFormat(), JsonFormat(), CSV, KeyValueFormat(), BOARD])
@given(payload=st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
def test_any_bytes_are_read_or_refused(format_: PayloadFormat, payload: bytes) -> None:
    for wrapped in (payload, base64.b64encode(payload)):
        with suppress(PayloadUnreadableError):
            format_.read(wrapped)
