"""Requests and responses: the meaning of their options, content formats and block-wise responses."""

import json
import math
import re
from fractions import Fraction
from functools import lru_cache, partial
from io import BytesIO
from typing import Any, Final, NamedTuple, NoReturn

import cbor2
import msgspec

from broker.errors import BadRequest, BodyTooLarge, DomainError, StorageUnavailable, TryLater
from broker.numbers import INT64
from config.limits import COAP_BODY_BYTES
from protocols.binary_json import to_json
from protocols.coap.blockwise import BlockOption, Blockwise, BlockwiseOperation, cut
from protocols.coap.errors import (
    BadOption,
    NotAcceptable,
    ProxyingNotSupported,
    UnsupportedFormat,
    error_document,
    response_code,
)
from protocols.coap.messages import CBOR, JSON, OCTETS, TEXT, CoapMessage, Option, content_format, uint

#: The known options: least and most bytes, and whether the option may be repeated (RFC 7252, table 4; RFC 7641, 7959,
#: 9175). Any other critical option is refused, any other elective option is ignored.
_KNOWN: Final[dict[int, tuple[int, int, bool]]] = {
    Option.URI_HOST: (1, 255, False),
    Option.OBSERVE: (0, 3, False),
    Option.ETAG: (1, 8, True),
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

#: The tags that cbor2 decodes by itself, but those of numbers and of CBOR itself. They are refused: with some, an array
#: that refers to itself, a few bytes become a great many.
_REFUSED_TAGS: Final = (0, 1, 25, 28, 29, 30, 35, 36, 37, 52, 54, 100, 256, 258, 260, 261, 1004, 43_000)
_MAX_DEPTH: Final = 64
#: 2 to the power of 1,024 is beyond a double, and so is ten to that of 1,100 with the longest mantissa.
_BIGNUM_BYTES: Final = 128
_MOST_EXPONENT: Final = 2_200
#: Half of a surrogate pair, as UTF-8 would have it.
_HALF: Final = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]")

_decode_json = msgspec.json.Decoder().decode
_encode_json = msgspec.json.Encoder().encode


#: Most options of a request whose result of `read_request` is cached, which bounds the cache.
_MAX_CACHED_OPTIONS = 8


class CoapRequest(NamedTuple):
    """The code and the options of a request."""

    method: int
    path: tuple[bytes, ...]
    format: int | None
    accept: int | None
    observe: int | None
    block1: BlockOption | None
    block2: BlockOption | None
    size1: int
    echo: bytes | None
    tags: tuple[bytes, ...]
    etags: tuple[bytes, ...] = ()

    @property
    def operation(self) -> BlockwiseOperation:
        return self.method, self.path, self.tags

    @property
    def answer_format(self) -> int:
        """The format that the peer accepts, else the format of its request (reference 17)."""
        if self.accept in (JSON, CBOR):
            return self.accept
        return CBOR if self.format == CBOR else JSON


def read_request(message: CoapMessage) -> CoapRequest:
    """Read the options of a request.

    Raises:
        BadOption: a critical option is unknown, repeated or of a wrong length.
        ProxyingNotSupported: the request is for a proxy.
        BadRequest: a block option has the reserved size.
    """
    read = _read if len(message.options) > _MAX_CACHED_OPTIONS else _read_once
    return read(message.code, message.options)


def _read(method: int, options: tuple[tuple[int, bytes], ...]) -> CoapRequest:
    found: dict[int, bytes] = {}
    path: list[bytes] = []
    tags: list[bytes] = []
    etags: list[bytes] = []
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
        elif number == Option.ETAG:
            etags.append(value)
    if path and not path[-1]:  # a trailing slash
        path.pop()
    block1, block2 = found.get(Option.BLOCK1), found.get(Option.BLOCK2)
    return CoapRequest(
        method=method,
        path=tuple(path),
        format=_number(found.get(Option.CONTENT_FORMAT)),
        accept=_number(found.get(Option.ACCEPT)),
        observe=_number(found.get(Option.OBSERVE)),
        block1=None if block1 is None else BlockOption.decode(block1),
        block2=None if block2 is None else BlockOption.decode(block2),
        size1=int.from_bytes(found.get(Option.SIZE1, b""), "big"),
        echo=found.get(Option.ECHO),
        tags=tuple(tags),
        etags=tuple(etags),
    )


#: A device sends the same options again and again.
_read_once: Final = lru_cache(maxsize=2048)(_read)


def _number(value: bytes | None) -> int | None:
    return None if value is None else int.from_bytes(value, "big")


#: The formats of a payload that is `data` itself, without an envelope: for devices whose Manifest has a transform.
BARE: Final = (TEXT, OCTETS)
_REQUEST_FORMATS: Final = frozenset({None, JSON, CBOR, *BARE})
_ACCEPTED: Final = frozenset({None, JSON, CBOR})


def check_formats(request: CoapRequest) -> None:
    """Raises UnsupportedFormat or NotAcceptable unless formats are JSON, CBOR or, for requests, a bare payload."""
    if request.format not in _REQUEST_FORMATS:
        raise UnsupportedFormat
    if request.accept not in _ACCEPTED:
        raise NotAcceptable


def _refuse_tag(*_: object) -> NoReturn:
    raise ValueError("a tag")


def _bignum(value: object, _immutable: object) -> int | float:
    """RFC 8949, 3.4.3. One beyond a double is infinite, so that it fits no field."""
    if not isinstance(value, bytes):
        raise TypeError("a bignum that is no byte string")
    return int.from_bytes(value, "big") if len(value) <= _BIGNUM_BYTES else math.inf


def _negative_bignum(value: object, _immutable: object) -> int | float:
    return -1 - _bignum(value, _immutable)


def _fraction(base: int, value: object, _immutable: object) -> int | float:
    """A decimal fraction or a bigfloat (RFC 8949, 3.4.4), as an integer of at most 64 bits or a double."""
    match value:
        case [bool(), _] | [_, bool()]:
            raise TypeError("a fraction of Booleans")
        case [int() as exponent, int() as mantissa]:
            pass
        case [int(), float() as beyond]:  # a bignum that is infinite
            return beyond
        case _:
            raise TypeError("a fraction that is not an exponent and a mantissa")
    if mantissa == 0:
        return 0
    if not -_MOST_EXPONENT <= exponent <= _MOST_EXPONENT:
        return math.copysign(math.inf, mantissa) if exponent > 0 else 0.0
    exact = Fraction(base) ** exponent * mantissa
    if exact.denominator == 1 and exact.numerator in INT64:
        return exact.numerator
    try:
        return float(exact)
    except OverflowError:
        return math.copysign(math.inf, mantissa)


def _itself(value: object, _immutable: object) -> object:
    """Self-described CBOR (RFC 8949, 3.4.6)."""
    return value


_TAGS: Final[dict[int, Any]] = {
    **dict.fromkeys(_REFUSED_TAGS, _refuse_tag),
    2: _bignum,
    3: _negative_bignum,
    4: partial(_fraction, 10),
    5: partial(_fraction, 2),
    55_799: _itself,
}


def decode_cbor(payload: bytes) -> object:
    """Decode one CBOR value. Bignums, decimal fractions and bigfloats are numbers, other tags are refused.

    A text with half of a surrogate pair has one in the result, too.

    Raises BadRequest when the payload is not one value, has a text that is not UTF-8, or is nested too deeply.
    """
    try:
        return _load_cbor(payload)
    except BadRequest:
        if _HALF.search(payload) is None:
            raise
    return _with_halves(_load_cbor(payload, str_errors="replace"))


def _load_cbor(payload: bytes, str_errors: str = "strict") -> object:
    stream = BytesIO(payload)
    try:
        found = cbor2.load(
            stream, tag_hook=_refuse_tag, semantic_decoders=_TAGS, max_depth=_MAX_DEPTH, str_errors=str_errors
        )
    except (cbor2.CBORError, ValueError, TypeError, OverflowError) as error:
        raise BadRequest from error
    if stream.tell() < len(payload):
        raise BadRequest
    return found


def _with_halves(value: Any) -> Any:
    """The decoder has no way to keep half of a surrogate pair: it replaced what was not UTF-8."""
    if isinstance(value, str):
        return value.replace("\ufffd", "\ud800")
    if isinstance(value, list):
        return [_with_halves(one) for one in value]
    return {name: _with_halves(one) for name, one in value.items()} if isinstance(value, dict) else value


def cbor_to_json(payload: bytes) -> bytes:
    """Convert as RFC 8949, 6.1 advises: byte strings become BASE64, numbers as keys become text.

    Raises:
        BadRequest: the payload is not one CBOR value, has tags, or has no equivalent in JSON.
    """
    found = decode_cbor(payload)
    try:
        return to_json(found)
    except (ValueError, TypeError, OverflowError) as error:
        raise BadRequest from error


def json_to(format_: int, body: bytes) -> bytes:
    """Encode a JSON body in the peer's format.

    An Action is stored as its sender wrote it. In CBOR a number beyond the range of doubles becomes infinity, and half
    of a surrogate pair U+FFFD.
    """
    if format_ != CBOR:
        return body
    try:
        found = _decode_json(body)
    except msgspec.DecodeError:
        found = json.loads(body)
    try:
        return cbor2.dumps(found)
    except UnicodeEncodeError:
        return cbor2.dumps(_without_halves(found))


def _without_halves(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_without_halves(one) for one in value]
    if isinstance(value, dict):
        return {_without_halves(name): _without_halves(one) for name, one in value.items()}
    return value


class CoapResponse(NamedTuple):
    """A response. `format` is the content format of the body, `options` are the others."""

    code: int
    body: bytes = b""
    format: int = JSON
    options: tuple[tuple[int, bytes], ...] = ()
    #: A duplicate of the request may be processed again (RFC 7252, 4.5), so nothing is kept for it.
    is_repeatable: bool = False


def refusal_response(error: DomainError, request: CoapRequest | None, *, error_id: str | None = None) -> CoapResponse:
    """The response for an error, in the peer's format; in JSON if the request could not be read."""
    body = error_document(error)
    if error_id is not None:
        body["error"]["id"] = error_id
    format_ = JSON if request is None else request.answer_format
    return CoapResponse(response_code(error), json_to(format_, _encode_json(body)), format_, _advice(error))


def _advice(error: DomainError) -> tuple[tuple[int, bytes], ...]:
    """Options that tell the peer when to try again (RFC 8516), or the largest body (RFC 7959, 2.9.3)."""
    if isinstance(error, TryLater | StorageUnavailable):
        return ((Option.MAX_AGE, uint(error.retry_seconds)),)
    if isinstance(error, BodyTooLarge):
        return ((Option.SIZE1, uint(COAP_BODY_BYTES)),)
    return ()


def in_blocks(response: CoapResponse, request: CoapRequest, blocks: Blockwise, now: float) -> CoapResponse:
    """The block of a response that the peer wants, or the whole if it fits into one block (RFC 7959, 2.4).

    Raises:
        BadRequest: the block is beyond the end.
    """
    part = cut(response.body, request.block2)
    if part is None:
        return response
    if part.block.more:
        blocks.offer(request.operation, response.body, now)
    options = [*response.options, (Option.ETAG, part.etag), (Option.BLOCK2, part.block.encode())]
    if part.block.number == 0:
        options.append((Option.SIZE2, uint(len(response.body))))
    return response._replace(body=part.payload, options=tuple(options))


def response_options(response: CoapResponse) -> tuple[tuple[int, bytes], ...]:
    """All options of a response, in the order of their numbers."""
    if not response.body:
        return response.options
    if not response.options:
        return (content_format(response.format),)
    return tuple(sorted((*response.options, content_format(response.format))))
