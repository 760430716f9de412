"""The PROXY protocol, versions 1 and 2: before the client's first byte, a proxy names the client.

Source: https://www.haproxy.org/download/2.9/doc/proxy-protocol.txt. A header has few forms, and a wrong one
can do much harm, so this parser takes the documented forms only. It never reads a byte beyond the header, because
later bytes belong to TLS or to the protocol of the listener.
"""

import struct
from ipaddress import IPv4Address, IPv6Address
from typing import Final

import trio

#: The most bytes behind the first 16 of version 2. The specification allows 64 KiB; extensions take some hundred bytes.
HEADER_BYTES: Final = 2048
#: The longest header of version 1, with its line end (section 2.1).
LINE_BYTES: Final = 107

_LINE_BEGINS: Final = b"PROXY "
_SIGNATURE: Final = b"\r\n\r\n\0\r\nQUIT\n"
_FIRST_BYTES: Final = len(_LINE_BEGINS)
_LOCAL, _PROXY = 0x20, 0x21  # version 2, and the command

IpAddress = IPv4Address | IPv6Address
_Kind = type[IPv4Address] | type[IPv6Address]
_NAMES: Final[dict[str, _Kind]] = {"TCP4": IPv4Address, "TCP6": IPv6Address}
#: The families of version 2, and how many bytes their addresses have.
_FAMILIES: Final[dict[int, tuple[_Kind, int]]] = {0x11: (IPv4Address, 4), 0x21: (IPv6Address, 16)}
Source = tuple[IpAddress, int]


class ProxyHeaderError(Exception):
    """The peer has not sent a valid header. The text says why, without anything that the peer has sent."""


async def receive_source(socket: trio.socket.SocketType) -> Source | None:
    """Read the header. The caller sets a time limit.

    Returns:
        Address and port of the client; None when the proxy speaks for itself, as in its health checks.

    Raises:
        ProxyHeaderError: this is no header, or one that is malformed or too long.
        OSError: the connection has failed.
    """
    first = await _exactly(socket, _FIRST_BYTES)
    if first == _LINE_BEGINS:
        return _source_in_line(first + await _rest_of_line(socket))
    if first != _SIGNATURE[:_FIRST_BYTES]:
        raise ProxyHeaderError("no header of the PROXY protocol")
    head = first + await _exactly(socket, 16 - _FIRST_BYTES)
    signature, command, family, length = struct.unpack("!12sBBH", head)
    if signature != _SIGNATURE:
        raise ProxyHeaderError("no header of the PROXY protocol")
    if length > HEADER_BYTES:
        raise ProxyHeaderError("the header is too long")
    return _source_in_block(command, family, await _exactly(socket, length))


async def _exactly(socket: trio.socket.SocketType, size: int) -> bytes:
    received = b""
    while len(received) < size:
        chunk = await socket.recv(size - len(received))
        if not chunk:
            raise ProxyHeaderError("the header is incomplete")
        received += chunk
    return received


async def _rest_of_line(socket: trio.socket.SocketType) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        left = LINE_BYTES - _FIRST_BYTES - len(line)
        if not left:
            raise ProxyHeaderError("the line is too long")
        seen = await socket.recv(left, trio.socket.MSG_PEEK)
        line += await _exactly(socket, seen.find(b"\n") + 1 or len(seen) or 1)
    return line


def _source_in_line(line: bytes) -> Source | None:
    try:
        text = line.decode("ascii")
        if not text.endswith("\r\n"):
            raise ValueError
        _, family, *fields = text[:-2].split(" ")
        if family == "UNKNOWN":
            return None
        source, destination, port, destination_port = fields
        kind = _NAMES[family]
        kind(destination)
        _port(destination_port)
        return kind(source), _port(port)
    except (ValueError, KeyError):
        raise ProxyHeaderError("the line is malformed") from None


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or (port := int(text)) > 65535 or str(port) != text:
        raise ValueError
    return port


def _source_in_block(command: int, family: int, block: bytes) -> Source | None:
    """The source in what follows the 16 bytes of version 2: two addresses and two ports, then extensions."""
    if command == _LOCAL:
        return None
    if command != _PROXY or family not in _FAMILIES:
        raise ProxyHeaderError("the header is malformed")
    kind, size = _FAMILIES[family]
    if len(block) < 2 * size + 4:
        raise ProxyHeaderError("the header is malformed")
    return kind(block[:size]), int.from_bytes(block[2 * size : 2 * size + 2], "big")
