"""Requests of devices: their options, and the parameters of a registration (reference 18.2)."""

import re
from typing import Final, NamedTuple

import msgspec

from broker.errors import BadRequest
from protocols.coap.blockwise import BlockOption
from protocols.coap.errors import BadOption, ProxyingNotSupported, Unfit, UnsupportedFormat
from protocols.coap.lwm2m.formats.values import UnreadablePayload
from protocols.coap.lwm2m.links import Offer, parse_offer
from protocols.coap.messages import LINK_FORMAT, CoapMessage, Option

LIFETIME_SECONDS: Final = 86_400
#: Bounds of `lt`: 0 and numbers beyond are taken for the nearest one.
_SHORTEST_SECONDS, _LONGEST_SECONDS = 1, 400 * 86_400
_MAX_SEGMENTS: Final = 8
_MAX_QUERIES: Final = 16
#: Critical options that may come. Others are refused with 4.02 (RFC 7252, 5.4.1).
_KNOWN: Final = frozenset(
    {Option.URI_HOST, Option.URI_PORT, Option.URI_PATH, Option.URI_QUERY, Option.ACCEPT, Option.BLOCK1, Option.BLOCK2}
)
_PROXYING: Final = (Option.PROXY_URI, Option.PROXY_SCHEME)


class DeviceRequest(NamedTuple):
    """A request of a device. The option Observe, which some send with a registration, is ignored."""

    method: int
    path: tuple[bytes, ...]
    queries: tuple[bytes, ...]
    format: int | None
    block1: BlockOption | None
    payload: bytes


def read_device_request(message: CoapMessage) -> DeviceRequest:
    """Read the options of a request.

    Raises:
        BadOption: a critical option is unknown.
        ProxyingNotSupported: the request is for a proxy.
        BadRequest: there are too many segments or queries, or a block option is malformed.
    """
    path: list[bytes] = []
    queries: list[bytes] = []
    format_: int | None = None
    block1: BlockOption | None = None
    for number, value in message.options:
        if number == Option.URI_PATH:
            path.append(value)
        elif number == Option.URI_QUERY:
            queries.append(value)
        elif number == Option.CONTENT_FORMAT:
            format_ = int.from_bytes(value[:4], "big")
        elif number == Option.BLOCK1:
            block1 = BlockOption.decode(value[:4])
        elif number in _PROXYING:
            raise ProxyingNotSupported
        elif number & 1 and number not in _KNOWN:
            raise BadOption(number)
    while path and not path[-1]:  # a trailing slash
        path.pop()
    if len(path) > _MAX_SEGMENTS or len(queries) > _MAX_QUERIES:
        raise BadRequest
    return DeviceRequest(message.code, tuple(path), tuple(queries), format_, block1, message.payload)


class Parameters(msgspec.Struct, frozen=True):
    """The parameters of a registration or an update. None: not given."""

    endpoint: str | None = None
    token: str | None = None
    lifetime_seconds: int | None = None
    binding: str | None = None
    version: str | None = None
    has_queue_mode: bool = False
    offer: Offer | None = None


def read_parameters(request: DeviceRequest) -> Parameters:
    """Read query and body. Unknown parameters are ignored; of a repeated one the last counts.

    Raises:
        BadRequest: a parameter or the body cannot be read.
        UnsupportedFormat: the body is not in link format.
    """
    given: dict[str, str] = {}
    for query in request.queries:
        try:
            parts = query.decode().split("&")  # some devices put all parameters into one option
        except UnicodeDecodeError:
            raise Unfit("A parameter is not UTF-8") from None
        for part in parts:
            name, _, value = part.partition("=")
            given[name.strip().lower()] = value.strip()
    binding = given.get("b")
    return Parameters(
        endpoint=given.get("ep") or None,
        token=given.get("token") or None,
        lifetime_seconds=_lifetime(given.get("lt")),
        binding=binding,
        version=given.get("lwm2m"),
        has_queue_mode="q" in given or (binding is not None and "Q" in binding.upper()),
        offer=_offer(request),
    )


def _lifetime(text: str | None) -> int | None:
    if not text:
        return None
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise Unfit("lt is not a number of seconds")
    return min(max(int(text), _SHORTEST_SECONDS), _LONGEST_SECONDS)


def _offer(request: DeviceRequest) -> Offer | None:
    if not request.payload:
        return None
    if request.format not in (None, LINK_FORMAT, 0):
        raise UnsupportedFormat
    try:
        return parse_offer(request.payload)
    except UnreadablePayload as error:
        raise Unfit(f"The list of objects {error}") from error
