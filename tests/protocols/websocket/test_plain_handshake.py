"""Handshakes that `plain_handshake` answers: wsproto answers each of them in the same way."""

from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, Request
from wsproto.utilities import RemoteProtocolError

from protocols.websocket.plain_handshake import plain_handshake
from tests.properties import examples
from tests.rows import each_row

_KEY: Final = b"dGhlIHNhbXBsZSBub25jZQ=="
#: Request of the client in RFC 6455, 1.2, in the order of its lines.
_HEADERS: Final = {
    b"Host": b"server.example.com:8080",
    b"Upgrade": b"websocket",
    b"Connection": b"Upgrade",
    b"Sec-WebSocket-Key": _KEY,
    b"Sec-WebSocket-Version": b"13",
}


def head_of(
    *more: tuple[bytes, bytes], target: bytes = b"/v1.1/websocket?ack=true", without: bytes = b"", **changed: bytes
) -> bytes:
    """`changed`: other values of those headers; `more`: further lines."""
    values = {name: changed.get(name.decode().lower().replace("-", "_"), value) for name, value in _HEADERS.items()}
    lines = [(name, value) for name, value in values.items() if name != without]
    return b"GET %b HTTP/1.1\r\n" % target + b"".join(b"%b: %b\r\n" % line for line in (*lines, *more)) + b"\r\n"


def by_wsproto(head: bytes, subprotocol: str | None) -> tuple[str, bytes, tuple[str, ...], bytes] | None:
    """Target, authorization, subprotocols and the answer; None when it is refused."""
    wire = WSConnection(ConnectionType.SERVER)
    try:
        wire.receive_data(head)
        request = next(wire.events(), None)
    except (RemoteProtocolError, UnicodeError):
        return None
    if not isinstance(request, Request):
        return None
    authorization = dict(request.extra_headers).get(b"authorization", b"")
    answer = wire.send(AcceptConnection(subprotocol=subprotocol))
    return request.target, bytes(authorization), tuple(request.subprotocols), answer


def check_that_both_agree(head: bytes, subprotocol: str | None = None) -> None:
    plain = plain_handshake(head)
    assert plain is not None
    ours = (plain.target, plain.authorization, plain.subprotocols, plain.acceptance(subprotocol))
    assert ours == by_wsproto(head, subprotocol)


@each_row(
    "head",
    [
        head_of(),
        head_of(target=b"/v1.1/live?Authorization=bearer+a%20b&uid=1"),
        head_of(host=b"localhost"),
        head_of(host=b"127.0.0.1:1"),
        head_of(upgrade=b"WebSocket", connection=b"keep-alive, UPGRADE"),
        head_of(connection=b"keep-alive \t,\t upgrade ,x"),
        head_of(sec_websocket_key=b"anything"),
        head_of((b"Authorization", b" \t bearer 1 2\t ")),
        head_of((b"Cookie", b"a=1"), (b"Cookie", b"b=2"), (b"X-Empty", b"")),
        head_of((b"Sec-WebSocket-Extensions", b"permessage-deflate; client_max_window_bits")),
        head_of((b"Origin", b"https://example.org"), (b"User-Agent", b'"a" (b; c) 1,2')),
    ],
)
def test_a_usual_handshake_is_plain_and_read_and_accepted_as_by_wsproto(head: bytes) -> None:
    check_that_both_agree(head)


@pytest.mark.parametrize("offered", [b"mqtt", b"mqttv3.1, mqtt", b" other,mqtt ,mqtt"])
def test_a_subprotocol_is_offered_and_chosen_as_by_wsproto(offered: bytes) -> None:
    check_that_both_agree(head_of((b"Sec-WebSocket-Protocol", offered)), "mqtt")


@each_row(
    "head",
    [
        head_of().replace(b"\r\n", b"\n"),
        head_of().replace(b"GET", b"POST"),
        head_of().replace(b"HTTP/1.1", b"HTTP/1.0"),
        head_of(target=b"http://a/v1.1/live"),
        head_of(target="/é".encode()),
        head_of((b"X-Name", "é".encode())),
        head_of((b"X-Folded", b"a\r\n b")),
        head_of((b"X Name", b"a")),
        head_of((b"", b"a")),
        head_of((b"Content-Length", b"0")),
        head_of((b"Transfer-Encoding", b"chunked")),
        head_of((b"Expect", b"100-continue")),
        *(head_of((name, value)) for name, value in _HEADERS.items()),  # twice
        head_of((b"Authorization", b"a"), (b"Authorization", b"b")),
        head_of((b"Sec-WebSocket-Protocol", b"a"), (b"Sec-WebSocket-Protocol", b"b")),
        *(head_of(without=name) for name in _HEADERS),
        head_of(upgrade=b"websocket, h2c"),
        head_of(connection=b"keep-alive"),
        head_of(sec_websocket_version=b"8"),
        head_of(host=b""),
        head_of(host=b"xn--nxasmq6b"),
        head_of(host=b"a..b"),
        head_of(host=b"a" * 64),
        head_of(host=b"a b"),
        head_of()[:-2],
        head_of() + b"x",
    ],
)
def test_what_is_unusual_or_wrong_is_left_to_wsproto(head: bytes) -> None:
    assert plain_handshake(head) is None


_HEAD: Final = head_of((b"Authorization", b"bearer x"), (b"Sec-WebSocket-Protocol", b"mqtt"))


@given(
    st.integers(0, len(_HEAD)),
    st.integers(0, 12),
    st.one_of(st.binary(max_size=4), st.sampled_from([b"\r\n", b"\t", b" ", b",", b":", b"xn--", b"Host: a\r\n"])),
)
@settings(max_examples=examples(300))
def test_what_is_plain_after_any_change_is_what_wsproto_reads(at: int, removed: int, added: bytes) -> None:
    head = _HEAD[:at] + added + _HEAD[at + removed :]
    plain = plain_handshake(head)
    if plain is None:
        return
    subprotocol = plain.subprotocols[0] if plain.subprotocols else None
    try:
        expected = by_wsproto(head, subprotocol)
    except Exception:  # noqa: BLE001 - such a subprotocol cannot be named in an answer, and is none that is served
        assert subprotocol != "mqtt"
        return
    assert expected == (plain.target, plain.authorization, plain.subprotocols, plain.acceptance(subprotocol))
