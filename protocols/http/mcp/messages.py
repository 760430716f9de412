"""The messages of the protocol: JSON-RPC 2.0, in the revisions that this service has (reference 29.2).

The revision of 2026-07-28 is stateless: each request says its revision itself. Older revisions begin with a handshake,
`initialize`, of which this service keeps nothing.
"""

import base64
import binascii
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from broker.nesting import NestedTooDeeplyError, check_nesting
from broker.numbers import number_out_of_range
from storage.migrations import VERSION

STATELESS: Final = "2026-07-28"
#: Revisions with a handshake, the newest first. Older ones have batches.
WITH_HANDSHAKE: Final = ("2025-11-25", "2025-06-18")
SUPPORTED: Final = (STATELESS, *WITH_HANDSHAKE)

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
HEADER_MISMATCH: Final = -32020
UNSUPPORTED_VERSION: Final = -32022

_META: Final = "io.modelcontextprotocol/"
_ENCODED: Final = ("=?base64?", "?=")
#: An id longer than this is no id: it comes back in the answer.
_ID_CHARACTERS: Final = 128
_INT53: Final = range(-(2**53) + 1, 2**53)
#: Gives a header of the request; empty without it.
Header = Callable[[bytes], str]

_encode = msgspec.json.Encoder().encode


class RpcError(Exception):
    """An error of the protocol. `status` is the HTTP status of its answer."""

    def __init__(self, code: int, message: str, *, status: int = 400, data: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.status = status
        self.data = data


class Asked(msgspec.Struct, frozen=True):
    """A request, or a notification: then `id` is None. `is_stateless`: of the revision without a handshake."""

    id: str | int | None
    method: str
    params: dict[str, Any]
    is_stateless: bool = False


def identity() -> dict[str, str]:
    return {"name": "trunkline", "title": "Trunkline", "version": VERSION}


def read_message(body: bytes) -> dict[str, Any]:
    """The JSON object of a message. Raises RpcError."""
    try:
        check_nesting(body)
        where = number_out_of_range(body)
        message = msgspec.json.decode(body)
    except (NestedTooDeeplyError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RpcError(PARSE_ERROR, "The body is not JSON") from error
    if where is not None:
        raise RpcError(INVALID_PARAMS, f"{where[:_ID_CHARACTERS]}: the number is out of range")
    if isinstance(message, list):
        raise RpcError(INVALID_REQUEST, "The revisions of this service have no batches: send one message")
    if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
        raise RpcError(INVALID_REQUEST, 'A message is an object with jsonrpc "2.0"')
    return message


def request_id(message: Mapping[str, Any]) -> str | int | None:
    """The id of a request; None for a message without one. Raises RpcError."""
    if "id" not in message:
        return None
    id_ = message["id"]
    if isinstance(id_, str) and len(id_) <= _ID_CHARACTERS:
        return id_
    if isinstance(id_, int) and not isinstance(id_, bool) and id_ in _INT53:
        return id_
    raise RpcError(INVALID_REQUEST, f"id: must be a whole number, or a text of at most {_ID_CHARACTERS} characters")


def asked_in(message: Mapping[str, Any], header: Header) -> Asked | None:
    """The request or notification in a message; None: it is an answer, to nothing that was asked. Raises RpcError."""
    id_ = request_id(message)
    method = message.get("method")
    if method is None and ("result" in message or "error" in message):
        return None
    if not isinstance(method, str):
        raise RpcError(INVALID_REQUEST, "method: must be a text")
    params = message.get("params", {})
    if not isinstance(params, dict):
        raise RpcError(INVALID_PARAMS, "params: must be an object")
    if id_ is None:
        return Asked(None, method, params)
    return Asked(id_, method, params, is_stateless=_is_stateless(method, params, header))


def _is_stateless(method: str, params: Mapping[str, Any], header: Header) -> bool:
    """Which of the two kinds of revisions a request is of. Raises RpcError where it breaks its revision's rules."""
    given = params.get("_meta", {})
    meta = given if isinstance(given, dict) else {}
    said, wanted = header(b"mcp-protocol-version"), meta.get(f"{_META}protocolVersion")
    if wanted is None and said != STATELESS:
        if said and said not in WITH_HANDSHAKE and method != "initialize":
            raise _unsupported(said)
        return False
    if not isinstance(wanted, str):
        raise RpcError(INVALID_PARAMS, f"params._meta.{_META}protocolVersion: must be a text")
    if said != wanted:
        raise RpcError(HEADER_MISMATCH, "Header mismatch: MCP-Protocol-Version is not the revision in params._meta")
    if wanted != STATELESS:
        raise _unsupported(wanted)
    if header(b"mcp-method") != method:
        raise RpcError(HEADER_MISMATCH, "Header mismatch: Mcp-Method is not the method of the body")
    if method == "tools/call" and _decoded(header(b"mcp-name")) != params.get("name"):
        raise RpcError(HEADER_MISMATCH, "Header mismatch: Mcp-Name is not params.name of the body")
    if not isinstance(meta.get(f"{_META}clientCapabilities"), dict):
        raise RpcError(INVALID_PARAMS, f"params._meta.{_META}clientCapabilities: must be an object")
    return True


def _unsupported(version: str) -> RpcError:
    data = {"supported": list(SUPPORTED), "requested": version[:_ID_CHARACTERS]}
    return RpcError(UNSUPPORTED_VERSION, "Unsupported protocol version", data=data)


def _decoded(value: str) -> str | None:
    """The value of a header that may be in Base64; None if it cannot be read."""
    start, end = _ENCODED
    if not value.startswith(start) or not value.endswith(end):
        return value or None
    try:
        return base64.b64decode(value[len(start) : -len(end)], validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None


def result_of(asked: Asked, result: Mapping[str, Any], *, cached_ms: int | None = None) -> bytes:
    """An answer with a result. `cached_ms`: how long a client may keep it, where the revision has a member for that."""
    if asked.is_stateless:
        result = {**result, "resultType": "complete", "_meta": {f"{_META}serverInfo": identity()}}
        if cached_ms is not None:
            result = {**result, "ttlMs": cached_ms, "cacheScope": "private"}
    return _encode({"jsonrpc": "2.0", "id": asked.id, "result": result})


def error_of(error: RpcError, id_: str | int | None) -> bytes:
    """An answer with an error; without an id where the message has none that can be read."""
    said: dict[str, Any] = {"code": error.code, "message": str(error)}
    if error.data is not None:
        said["data"] = error.data
    return _encode({"jsonrpc": "2.0", **({} if id_ is None else {"id": id_}), "error": said})
