"""Targets: what comes over a connection before anything else has looked at it."""

from contextlib import suppress

import trio

from broker.errors import DomainError
from broker.topics.access import covers
from broker.topics.space import is_subscribable
from broker.topics.tree import is_filter, is_topic, matches, pattern_of, split_shared
from protocols.coap.blockwise import BlockOption, Blockwise, block_of, cut
from protocols.coap.dtls import records
from protocols.coap.lwm2m import requests as lwm2m_requests
from protocols.coap.lwm2m.blocks import Blocks
from protocols.coap.lwm2m.formats.values import UnreadablePayload
from protocols.coap.messages import CoapMessage, MalformedMessage, decode_message, encode_options
from protocols.coap.reliable import CoapFrameReader, MalformedFrame
from protocols.coap.requests import check_formats, read_request
from protocols.http.forwarded import Forwarded
from protocols.http.heads import (
    HEAD_BYTES,
    head_refusal,
    headers_of,
    is_websocket_upgrade,
    parse_head,
    split_head,
    without_empty_lines,
)
from protocols.streams.proxies import TrustedProxies
from protocols.streams.proxy_protocol import ProxyHeaderError, receive_source
from protocols.websocket.device_channel import DeviceChannel
from protocols.websocket.frames import RefusedFrame, decode_client_frame, error_frame, form_of, token_in
from protocols.websocket.plain_handshake import plain_handshake
from protocols.websocket.streamed import StreamReader
from protocols.websocket.wire import CloseFrame, FrameReader, Received, WireError
from tests.fakes import new_refusals
from tests.fuzz.mqtt_world import decode as mqtt_packets
from tests.fuzz.target import Target

_REFUSALS = new_refusals()


def coap(data: bytes) -> None:
    """A datagram, as CoAP and LWM2M read it."""
    message = decode_message(data)
    known = [(number, value) for number, value in message.options if number < 300]
    encode_options(tuple(known[:8]))
    with suppress(DomainError):
        check_formats(read_request(message))
    with suppress(DomainError):
        lwm2m_requests.read_parameters(lwm2m_requests.read_device_request(message))


def coap_over_tcp(data: bytes) -> None:
    """The messages of a stream do not depend on how it was cut."""
    place = data[0] if data else 0
    assert _coap_messages(data[1:]) == _coap_messages(data[1 : 1 + place], data[1 + place :])


def _coap_messages(*pieces: bytes) -> tuple[list[CoapMessage], bool]:
    reader = CoapFrameReader()
    found: list[CoapMessage] = []
    for piece in pieces:
        try:
            found += reader.feed(piece)
        except MalformedFrame as error:
            return [*found, *error.messages], True
    return found, False


def blocks(data: bytes) -> None:
    """Block options and blocks of two bodies, from a device and towards it."""
    arriving, answer, now = Blockwise(), Blocks(), 0.0
    at = 0
    while at < len(data):
        head, at = data[at], at + 1
        option, at = data[at : at + (head & 3) + 1], at + (head & 3) + 1
        size = 16 << (option[-1] & 7) if option and head & 4 else head
        payload, at = data[at : at + size], at + size
        now += head >> 7
        with suppress(DomainError):
            block = BlockOption.decode(option)
            assert BlockOption.decode(block.encode()) == block
            arriving.collect((head & 8, (b"a",), ()), block, payload, now)
            arriving.offer((head & 8, (b"a",), ()), payload, now)
            cut(payload, block if head & 16 else None)
            block_of(payload, block)
        with suppress(UnreadablePayload):
            answer.take(CoapMessage(0, 0x45, 1, b"", ((23, option),) if head & 32 else (), payload))
            assert len(answer.next) == 2
    assert arriving.bytes_held <= 2 * 4 * (400 + 70_000)


def websocket(data: bytes) -> None:
    """The frames of a stream do not depend on how it was cut; a stream of another protocol has the same contents."""
    place = data[0] if data else 0
    whole, cut_ = _frames(data[1:]), _frames(data[1 : 1 + place], data[1 + place :])
    assert whole == cut_
    assert _streamed(data[1:]) == _streamed(data[1 : 1 + place], data[1 + place :])


def _frames(*pieces: bytes) -> tuple[list[object], int]:
    reader = FrameReader()
    found: list[object] = []
    for piece in pieces:
        try:
            received = reader.feed(piece)
            while True:
                found += received.messages + sorted(received.controls, key=repr)
                if any(isinstance(one, CloseFrame) for one in received.controls):
                    return sorted(found, key=repr), 0
                if not reader.is_behind:
                    break
                received = reader.feed(b"")
        except WireError as error:
            return sorted([*found, *error.received.messages, *error.received.controls], key=repr), error.code
    return sorted(found, key=repr), 0


def _streamed(*pieces: bytes) -> tuple[bytes, int]:
    reader = StreamReader()
    content = b""
    for piece in pieces:
        try:
            received = reader.feed(piece)
            while True:
                content += _content(received)
                if "" in received.messages or any(isinstance(one, CloseFrame) for one in received.controls):
                    return content, 0
                if not reader.is_behind:
                    break
                received = reader.feed(b"")
        except WireError as error:
            return content + _content(error.received), error.code
    return content, 0


def _content(received: Received) -> bytes:
    return b"".join(one for one in received.messages if isinstance(one, bytes))


def device_frames(data: bytes) -> None:
    """Client frames of the device channel: JSON and MessagePack, alone and in a channel with a device."""
    kind, payload = data[:1], data[1:]
    frame: str | bytes = payload
    if kind < b"\x80":
        frame = payload.decode(errors="replace")
    found = decode_client_frame(frame)
    if isinstance(found, RefusedFrame):
        error_frame(found.error, found.cid, form_of(frame))
    channel = DeviceChannel(ack=True, handshake_token="1" * 32)
    channel.receive('{"type":"register","sdid":"a"}')
    channel.registration_accepted("a")
    channel.receive_usual([frame])
    channel.receive(frame)


def proxy_header(data: bytes) -> None:
    """The header, and nothing behind it, is read from a socket."""

    class Socket:
        at = 0

        async def recv(self, size: int, flags: int = 0) -> bytes:
            await trio.lowlevel.checkpoint()
            piece = data[self.at : self.at + min(size, 7)]
            if not flags:
                self.at += len(piece)
            return piece

    socket = Socket()

    async def read() -> None:
        await receive_source(socket)  # type: ignore[arg-type]

    trio.run(read)


def http_heads(data: bytes) -> None:
    """The readings of a head agree with each other."""
    received = without_empty_lines(data)
    if received:
        head_refusal(received, _REFUSALS)
    head, behind = split_head(received)
    assert head + behind == received
    parsed = parse_head(received)
    if parsed is not None:
        assert parsed.head_length == len(head) <= HEAD_BYTES
        assert [(name, value.strip(b"\t ")) for name, value in headers_of(head)] == list(parsed.headers)
        assert not is_websocket_upgrade(head)
    is_websocket_upgrade(received)
    plain = plain_handshake(head)
    if plain is not None:
        assert is_websocket_upgrade(head)
        plain.acceptance(next(iter(plain.subprotocols), None))
    token_in(head.decode("latin-1"))


def forwarded(data: bytes) -> None:
    """Headers by lines. The client is an address, or the proxy."""
    from ipaddress import ip_address, ip_network

    names = (b"forwarded", b"x-forwarded-for", b"X-Forwarded-Proto")
    headers = [(names[line[:1][0] % 3], line[1:]) for line in data.split(b"\n") if line]
    found = Forwarded(headers)
    proxies = TrustedProxies((ip_network("127.0.0.0/8"), ip_network("fd00::/8")))
    ip_address(found.client("127.0.0.1", proxies))
    assert found.is_https in (True, False, None)


def dtls_records(data: bytes) -> None:
    for record in records.records(data):
        records.is_in_clear(record)
        records.psk_identity(record)
        if records.is_client_hello(record):
            records.hello_key(record)
            records.session_id(record)


def topics(data: bytes) -> None:
    """A filter and a topic: each way to compare them gives the same answer."""
    first, _, second = data.partition(b"\n")
    if is_subscribable(first) and first.startswith(b"$share/"):
        assert split_shared(first) is not None
    if is_filter(first) and is_topic(second):
        is_match = matches(first, second)
        assert is_match == (pattern_of(first).fullmatch(second) is not None)
        if is_filter(second):
            assert covers(first, second) == is_match
    if is_filter(first) and is_filter(second):
        covers(first, second)


TARGETS = (
    Target("mqtt-packets", mqtt_packets, allowed=()),
    Target("coap", coap, allowed=(MalformedMessage,)),
    Target("coap-over-tcp", coap_over_tcp, allowed=()),
    Target("blocks", blocks, allowed=()),
    Target("websocket", websocket, allowed=()),
    Target("device-frames", device_frames, allowed=()),
    Target("proxy-header", proxy_header, allowed=(ProxyHeaderError,)),
    Target("http-heads", http_heads, allowed=()),
    Target("forwarded", forwarded, allowed=()),
    Target("dtls-records", dtls_records, allowed=()),
    Target("topics", topics, allowed=()),
)
