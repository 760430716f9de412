"""Opening handshakes that are read and answered without wsproto: the form that nearly every client uses, and no others.

wsproto and h11 take ten times as long as all else that a handshake needs, and strangers open connections too. A
handshake that is plain here is read and accepted by wsproto in the same way. Everything else is not plain: folded or
non-ASCII lines, hosts that need IDNA, headers twice of which there is one, bodies, and all that is wrong.
"""

import re
from base64 import b64encode
from hashlib import sha1
from typing import Final

import msgspec

_HEAD: Final = re.compile(rb"GET (/[!-~]*) HTTP/1\.1\r\n((?:[A-Za-z0-9_-]+:[\t -~]*\r\n)+)\r\n")
_HOST: Final = re.compile(rb"(?!.*xn--)[A-Za-z0-9-]{1,60}(?:\.[A-Za-z0-9-]{1,60}){0,9}(?::[0-9]{1,5})?", re.IGNORECASE)
#: Each of these there is once at most.
_SINGLE: Final = frozenset(
    {
        b"authorization",
        b"connection",
        b"host",
        b"sec-websocket-key",
        b"sec-websocket-protocol",
        b"sec-websocket-version",
        b"upgrade",
    }
)
_REFUSED: Final = frozenset({b"content-length", b"expect", b"transfer-encoding"})
_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455, 1.3


class PlainHandshake(msgspec.Struct, frozen=True):
    target: str
    authorization: bytes
    subprotocols: tuple[str, ...]
    key: bytes

    def acceptance(self, subprotocol: str | None) -> bytes:
        """The answer 101 (RFC 6455, 4.2.2)."""
        accept = b64encode(sha1(self.key + _GUID, usedforsecurity=False).digest())
        chosen = b"" if subprotocol is None else f"Sec-WebSocket-Protocol: {subprotocol}\r\n".encode("ascii")
        return (
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: %b\r\n%b\r\n" % (accept, chosen)
        )


def plain_handshake(head: bytes) -> PlainHandshake | None:
    """The handshake of a whole head; None for one that is not plain."""
    match = _HEAD.fullmatch(head)
    if match is None:
        return None
    single: dict[bytes, bytes] = {}
    for line in match[2].split(b"\r\n")[:-1]:
        name, _, value = line.partition(b":")
        name = name.lower()
        if name in _REFUSED or name in single:
            return None
        if name in _SINGLE:
            single[name] = value.strip(b"\t ")
    tokens = single.get(b"connection", b"").lower().split(b",")
    if (
        single.get(b"upgrade", b"").lower() != b"websocket"
        or single.get(b"sec-websocket-version") != b"13"
        or b"upgrade" not in [token.strip() for token in tokens]
        or b"sec-websocket-key" not in single
        or _HOST.fullmatch(single.get(b"host", b"")) is None
    ):
        return None
    offered = single.get(b"sec-websocket-protocol")
    return PlainHandshake(
        match[1].decode("ascii"),
        single.get(b"authorization", b""),
        () if offered is None else tuple(one.strip() for one in offered.decode("ascii").split(",")),
        single[b"sec-websocket-key"],
    )
