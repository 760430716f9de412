"""The opening handshake: what a client asks for, and the answer to it (reference 19.1 and 1.3).

wsproto reads the request and writes the answer; after that it has done its part (wire.py).
"""

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl

import structlog
import trio
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, RejectConnection, RejectData, Request
from wsproto.utilities import RemoteProtocolError

from broker.errors import BadRequest, DomainError, TryLater
from broker.ids import new_id
from protocols.websocket.errors import rest_body
from protocols.websocket.frames import bearer_token

HANDSHAKE_SECONDS: Final = 10.0
_HEAD_BYTES: Final = 64 * 1024
_END_OF_HEAD: Final = re.compile(rb"\n\r?\n")  # as lenient as h11
_TRUE: Final = frozenset({"true", "1"})

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Call:
    """What a client asks for. `token` is None when there is none, and empty when it cannot be read."""

    path: str  # without a trailing slash
    parameters: dict[str, tuple[str, ...]]
    token: str | None

    def value(self, name: str) -> str | None:
        """Of a parameter that was repeated, the last one counts."""
        values = self.parameters.get(name)
        return values[-1] if values else None

    def flag(self, name: str) -> bool:
        return (self.value(name) or "").lower() in _TRUE

    def ids(self, name: str) -> tuple[str, ...]:
        """Of a list that was repeated, all count; each id once."""
        items = (item.strip() for value in self.parameters.get(name, ()) for item in value.split(","))
        return tuple(dict.fromkeys(filter(None, items)))


class Handshake:
    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self._wire = WSConnection(ConnectionType.SERVER)
        self._early = b""
        self._path = ""

    async def receive(self) -> Call | None:
        """The client's request; None when it sent none, or one that is no handshake and has been refused."""
        head = None
        with trio.move_on_after(HANDSHAKE_SECONDS):
            head = await self._read_head()
        if head is None:
            return None
        try:
            self._wire.receive_data(head)
            request = next(self._wire.events(), None)
        except (RemoteProtocolError, UnicodeError) as error:
            await self._refuse_malformed(error)
            return None
        if not isinstance(request, Request):
            return None
        call = _call(request)
        self._path = call.path
        return call

    async def _read_head(self) -> bytes | None:
        read = b""
        while (end := _END_OF_HEAD.search(read)) is None:
            received = await self._stream.receive_some(_HEAD_BYTES)
            read += received
            if not received or len(read) > _HEAD_BYTES:
                return None
        # A client that cannot wait may have sent frames behind its request.
        self._early = read[end.end() :]
        return read[: end.end()]

    async def accept(self) -> bytes:
        """Answer 101. Returns what the client had sent behind its request."""
        await self._stream.send_all(self._wire.send(AcceptConnection()))
        return self._early

    async def refuse(self, error: DomainError, headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        """Answer with the status and the body that REST has for this error."""
        error_id = new_id()
        # Never the query: it may carry a token.
        _log.info("websocket_refused", error_id=error_id, status=error.status, path=self._path[:200], reason=str(error))
        if error.status == 401:
            headers = (*headers, (b"WWW-Authenticate", b"Bearer"))
        if isinstance(error, TryLater):
            headers = (*headers, (b"Retry-After", str(error.retry_seconds).encode()))
        body = rest_body(error, error_id)
        answer = RejectConnection(
            status_code=error.status,
            headers=[
                *headers,
                (b"Content-Type", b"application/json; charset=utf-8"),
                (b"Content-Length", str(len(body)).encode()),
                (b"Connection", b"close"),
            ],
            has_body=True,
        )
        await self._stream.send_all(self._wire.send(answer) + self._wire.send(RejectData(data=body)))

    async def _refuse_malformed(self, error: Exception) -> None:
        hint = getattr(error, "event_hint", None)
        if isinstance(hint, RejectConnection) and hint.status_code == 426:
            await self._stream.send_all(self._wire.send(hint))
        else:
            await self.refuse(BadRequest())


def _call(request: Request) -> Call:
    path, _, query = request.target.partition("?")
    parameters: dict[str, tuple[str, ...]] = {}
    authorization = None
    # Empty and malformed parameters are ignored, and so is a stray `?` before a name.
    for given, value in parse_qsl(query):
        name = given.lstrip("?")
        if name.lower() == "authorization":
            authorization = value
        else:
            parameters[name] = (*parameters.get(name, ()), value)
    if authorization is None:
        headers = {name: value for name, value in request.extra_headers if name == b"authorization"}
        authorization = headers.get(b"authorization", b"").decode("latin-1")
    token = (bearer_token(authorization) or "") if authorization.strip() else None
    return Call(path.rstrip("/"), parameters, token)
