"""The parser takes the documented headers only, and not a byte beyond them."""

import struct
from ipaddress import ip_address

import pytest
import trio
import trio.testing

from protocols.streams.proxy_protocol import HEADER_BYTES, LINE_BYTES, ProxyHeaderError, Source, receive_source
from tests.rows import each_row

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
V4 = bytes([203, 0, 113, 7, 192, 0, 2, 1]) + struct.pack("!HH", 54321, 8080)
V6 = ip_address("2001:db8::7").packed + ip_address("2001:db8::1").packed + struct.pack("!HH", 54321, 8080)
CLIENT_V4 = (ip_address("203.0.113.7"), 54321)
CLIENT_V6 = (ip_address("2001:db8::7"), 54321)


def block(command: int, family: int, content: bytes, *, length: int | None = None) -> bytes:
    return SIGNATURE + struct.pack("!BBH", command, family, len(content) if length is None else length) + content


async def received(sent: bytes, *, one_by_one: bool = False) -> tuple[Source | None, bytes]:
    """The parser's result, and the bytes that it has left on the socket."""
    ours, theirs = trio.socket.socketpair()
    chunks = [sent[index : index + 1] for index in range(len(sent))] if one_by_one else [sent]

    async def send() -> None:
        for chunk in chunks:
            await theirs.send(chunk)
            await trio.testing.wait_all_tasks_blocked()
        theirs.shutdown(trio.socket.SHUT_WR)

    with ours, theirs:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            try:
                source = await receive_source(ours)
            except ProxyHeaderError as error:
                refusal = error
            else:
                rest = b""
                while chunk := await ours.recv(4096):
                    rest += chunk
                return source, rest
    raise refusal


@each_row("one_by_one", [False, True])
@each_row(
    ("header", "source"),
    [
        (b"PROXY TCP4 203.0.113.7 192.0.2.1 54321 8080\r\n", CLIENT_V4),
        (b"PROXY TCP6 2001:db8::7 2001:db8::1 54321 8080\r\n", CLIENT_V6),
        (b"PROXY UNKNOWN\r\n", None),
        (b"PROXY UNKNOWN ff:: ff:: 65535 65535\r\n", None),
        (block(0x21, 0x11, V4), CLIENT_V4),
        (block(0x21, 0x21, V6), CLIENT_V6),
        (block(0x21, 0x11, V4 + b"\x03\0\x04abcd"), CLIENT_V4),
        (block(0x20, 0x00, b""), None),
        (block(0x20, 0x11, V4), None),
    ],
)
async def test_a_header_names_the_client_and_ends_where_it_says(
    header: bytes, source: Source | None, one_by_one: bool
) -> None:
    assert await received(header + b"\x16\x03\x01PROXY", one_by_one=one_by_one) == (source, b"\x16\x03\x01PROXY")


@each_row(
    "sent",
    [
        b"",
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"\x16\x03\x01\x02\0\x01\0\x01",
        b"PROXY",
        b"PROXY TCP4 203.0.113.7",
        b"PROXY TCP4 203.0.113.7 192.0.2.1 54321 8080\n",
        b"PROXY TCP4 203.0.113.7 192.0.2.1 54321\r\n",
        b"PROXY TCP4 203.0.113.7 192.0.2.1 54321 8080 1\r\n",
        b"PROXY TCP4  203.0.113.7 192.0.2.1 54321 8080\r\n",
        b"PROXY TCP4 2001:db8::7 192.0.2.1 54321 8080\r\n",
        b"PROXY TCP4 203.0.113.007 192.0.2.1 54321 8080\r\n",
        b"PROXY TCP4 203.0.113.7 nonsense 54321 8080\r\n",
        b"PROXY TCP4 203.0.113.7 192.0.2.1 65536 8080\r\n",
        b"PROXY TCP4 203.0.113.7 192.0.2.1 +5 8080\r\n",
        b"PROXY TCP4 203.0.113.7 192.0.2.1 \xb2 8080\r\n",
        b"PROXY TCP4 203.0.113.7 192.0.2.1 054 8080\r\n",
        b"PROXY UDP4 203.0.113.7 192.0.2.1 54321 8080\r\n",
        b"PROXY " + b"a" * LINE_BYTES + b"\r\n",
        b"proxy TCP4 203.0.113.7 192.0.2.1 54321 8080\r\n",
        block(0x11, 0x11, V4),
        block(0x22, 0x11, V4),
        block(0x21, 0x12, V4),
        block(0x21, 0x31, b"\0" * 216),
        block(0x21, 0x11, V4[:-1]),
        block(0x21, 0x21, V4),
        block(0x21, 0x11, V4, length=len(V4) + 1),
        block(0x21, 0x11, V4 + b"\0" * HEADER_BYTES),
        SIGNATURE.replace(b"QUIT", b"quit") + block(0x21, 0x11, V4)[12:],
    ],
)
async def test_anything_else_is_refused(sent: bytes) -> None:
    with pytest.raises(ProxyHeaderError):
        await received(sent)
