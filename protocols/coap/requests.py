"""What a request asks for, and how an answer is written: options with their meaning, formats, blocks."""

import json
from functools import lru_cache
from io import BytesIO
from typing import Any, Final, NamedTuple, NoReturn

import cbor2
import msgspec

from broker.errors import BadRequest, BodyTooLarge, DomainError, TryLater
from config.limits import COAP_BODY_BYTES
from protocols.coap.blockwise import Block, Blockwise, Operation, cut
from protocols.coap.errors import (
    BadOption,
    NotAcceptable,
    ProxyingNotSupported,
    UnsupportedFormat,
    error_body,
    response_code,
)
from protocols.coap.messages import CBOR, JSON, OCTETS, TEXT, Message, Option, content_format, uint

#: The options that we understand: least and most bytes, and whether one may come twice (RFC 7252 table 4, RFC 7641,
#: 7959, 9175). Whatever else is critical is refused, whatever else is elective is not there.
_KNOWN: Final[dict[int, tuple[int, int, bool]]] = {
    Option.URI_HOST: (1, 255, False),
    Option.OBSERVE: (0, 3, False),
    Option.URI_PORT: (0, 2, False),
    Option.URI_PATH: (0, 255, True),
    Option.CONTENT_FORMAT: (0, 2, False),
    Option.URI_QUERY: (0, 255, True),
    Option.ACCEPT: (0, 2, False),
    Option.BLOCK2: (0, 3, False),
    Option.BLOCK1: (0, 3, False),
    Option.SIZE1: (0, 4, False),
    Option.ECHO: (1, 40, False),
    Option.REQUEST_TAG: (0, 8, True),
}
_PROXYING: Final = (Option.PROXY_URI, Option.PROXY_SCHEME)

#: The tags that cbor2 knows by itself. Some make a few bytes into a great many: an array may share itself.
_TAGS: Final = (*range(6), 25, 28, 29, 30, 35, 36, 37, 52, 54, 100, 256, 258, 260, 261, 1004, 43_000, 55_799)
_MAX_DEPTH: Final = 64

_decode_json = msgspec.json.Decoder().decode
_encode_json = msgspec.json.Encoder().encode


#: More, and they are read anew each time: what is remembered must not become large.
_MAX_REPEATED_OPTIONS = 8


class Request(NamedTuple):
    """A request without its payload."""

    method: int
    path: tuple[bytes, ...]
    format: int | None
    accept: int | None
    observe: int | None
    block1: Block | None
    block2: Block | None
    size1: int
    echo: bytes | None
    tags: tuple[bytes, ...]

    @property
    def operation(self) -> Operation:
        return self.method, self.path, self.tags

    @property
    def answer_format(self) -> int:
        """As the peer asked, or as it speaks itself (reference 17)."""
        if self.accept in (JSON, CBOR):
            return self.accept
        return CBOR if self.format == CBOR else JSON


def read_request(message: Message) -> Request:
    """Raises BadOption, ProxyingNotSupported, or BadRequest for a reserved block size."""
    read = _read if len(message.options) > _MAX_REPEATED_OPTIONS else _read_once
    return read(message.code, message.options)


def _read(method: int, options: tuple[tuple[int, bytes], ...]) -> Request:
    found: dict[int, bytes] = {}
    path: list[bytes] = []
    tags: list[bytes] = []
    for number, value in options:
        least, most, may_repeat = _KNOWN.get(number, (1, 0, False))
        if not least <= len(value) <= most or (number in found and not may_repeat):
            if number in _PROXYING:
                raise ProxyingNotSupported
            if number & 1:
                raise BadOption(number)
            continue
        found[number] = value
        if number == Option.URI_PATH:
            path.append(value)
        elif number == Option.REQUEST_TAG:
            tags.append(value)
    if path and not path[-1]:  # a trailing slash
        path.pop()
    block1, block2 = found.get(Option.BLOCK1), found.get(Option.BLOCK2)
    return Request(
        method=method,
        path=tuple(path),
        format=_number(found.get(Option.CONTENT_FORMAT)),
        accept=_number(found.get(Option.ACCEPT)),
        observe=_number(found.get(Option.OBSERVE)),
        block1=None if block1 is None else Block.decode(block1),
        block2=None if block2 is None else Block.decode(block2),
        size1=int.from_bytes(found.get(Option.SIZE1, b""), "big"),
        echo=found.get(Option.ECHO),
        tags=tuple(tags),
    )


#: A device asks for the same again and again.
_read_once: Final = lru_cache(maxsize=2048)(_read)


def _number(value: bytes | None) -> int | None:
    return None if value is None else int.from_bytes(value, "big")


#: A payload that is `data` itself: for devices whose Manifest has a transform.
BARE: Final = (TEXT, OCTETS)


def check_formats(request: Request) -> None:
    """JSON or CBOR, both ways, or a bare payload. Raises UnsupportedFormat, NotAcceptable."""
    if request.format not in (None, JSON, CBOR, *BARE):
        raise UnsupportedFormat
    if request.accept not in (None, JSON, CBOR):
        raise NotAcceptable


def _refuse_tag(*_: object) -> NoReturn:
    raise ValueError("a tag")


_NO_TAGS: Final[dict[int, Any]] = dict.fromkeys(_TAGS, _refuse_tag)


def cbor_to_json(payload: bytes) -> bytes:
    """As RFC 8949 section 6.1 has it: byte strings become BASE64, numbers as keys become text. There are no tags.

    Raises BadRequest for what is no CBOR, cannot be JSON, or goes on behind its end.
    """
    stream = BytesIO(payload)
    try:
        found = cbor2.load(stream, tag_hook=_refuse_tag, semantic_decoders=_NO_TAGS, max_depth=_MAX_DEPTH)
        if stream.tell() < len(payload):
            raise BadRequest
        return _encode_json(found)
    except (cbor2.CBORError, ValueError, TypeError, OverflowError) as error:
        raise BadRequest from error


def json_to(format_: int, body: bytes) -> bytes:
    """JSON of ours in the peer's format. Nobody has looked into an Action: a number beyond all doubles is infinity."""
    if format_ != CBOR:
        return body
    try:
        found = _decode_json(body)
    except msgspec.DecodeError:
        found = json.loads(body)
    return cbor2.dumps(found)


class Answer(NamedTuple):
    code: int
    body: bytes = b""
    format: int = JSON
    options: tuple[tuple[int, bytes], ...] = ()


def refusal(error: DomainError, request: Request | None, *, error_id: str | None = None) -> Answer:
    """The error body in the peer's format. What could not be read as a request is answered in JSON."""
    body = error_body(error)
    if error_id is not None:
        body["error"]["id"] = error_id
    format_ = JSON if request is None else request.answer_format
    return Answer(response_code(error), json_to(format_, _encode_json(body)), format_, _facts(error))


def _facts(error: DomainError) -> tuple[tuple[int, bytes], ...]:
    """What the peer can act on: when to try again, or how much is taken (RFC 7959 section 2.9.3)."""
    if isinstance(error, TryLater):
        return ((Option.MAX_AGE, uint(error.retry_seconds)),)
    if isinstance(error, BodyTooLarge):
        return ((Option.SIZE1, uint(COAP_BODY_BYTES)),)
    return ()


def in_blocks(answer: Answer, request: Request, blocks: Blockwise, now: float) -> Answer:
    """The part of an answer that fits or was asked for (RFC 7959 section 2.4). Raises BadRequest behind its end."""
    part = cut(answer.body, request.block2)
    if part is None:
        return answer
    if part.block.more:
        blocks.offer(request.operation, answer.body, now)
    options = [*answer.options, (Option.ETAG, part.etag), (Option.BLOCK2, part.block.encode())]
    if part.block.number == 0:
        options.append((Option.SIZE2, uint(len(answer.body))))
    return answer._replace(body=part.payload, options=tuple(options))


def answer_options(answer: Answer) -> tuple[tuple[int, bytes], ...]:
    """In the order of their numbers."""
    if not answer.body:
        return answer.options
    if not answer.options:
        return (content_format(answer.format),)
    return tuple(sorted((*answer.options, content_format(answer.format))))
