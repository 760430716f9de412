"""The opening handshake: what a client asks for, and the answer (reference 19.1 and 1.3).

plain_handshake.py reads and accepts what nearly every client sends, wsproto all else; wsproto also writes refusals.
Frames are read and written by wire.py.
"""

from typing import Final
from urllib.parse import parse_qsl

import msgspec
import trio
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, Event, RejectConnection, RejectData, Request
from wsproto.utilities import RemoteProtocolError

from broker.errors import BadRequest, DomainError
from broker.trace.refusals import Refusals
from protocols.refusals import error_id_of, note_refusal, rest_refusal_body, rest_refusal_headers
from protocols.roots import usual_root
from protocols.websocket.frames import token_in
from protocols.websocket.plain_handshake import plain_handshake

#: Where there are WebSockets.
PATHS: Final = frozenset({"/v1.1/websocket", "/v1.1/live", "/v1.1/events", "/mqtt"})

_TRUE: Final = frozenset({"true", "1"})


class HandshakeRequest(msgspec.Struct, frozen=True):
    """Request of a client. `token` is None when there is none, and empty when it cannot be parsed."""

    path: str  # without a trailing slash
    parameters: dict[str, tuple[str, ...]]
    token: str | None
    subprotocols: tuple[str, ...] = ()

    def value(self, name: str) -> str | None:
        """The value of a parameter; the last one if it was repeated."""
        values = self.parameters.get(name)
        return values[-1] if values else None

    @property
    def goes_on(self) -> bool:
        """Whether it asks for what was stored before (reference 19.6)."""
        return "after" in self.parameters or "since" in self.parameters

    def flag(self, name: str) -> bool:
        return (self.value(name) or "").lower() in _TRUE

    def ids(self, name: str) -> tuple[str, ...]:
        """The ids of a list, each once; all values count if it was repeated."""
        items = (item.strip() for value in self.parameters.get(name, ()) for item in value.split(","))
        return tuple(dict.fromkeys(filter(None, items)))


def is_upgrade(head: bytes) -> bool:
    """Whether a head, which asks for a WebSocket or for events, asks for the first."""
    return any(line.startswith(b"upgrade:") and b"websocket" in line for line in head.lower().split(b"\n"))


class Handshake:
    def __init__(self, head: bytes, stream: trio.abc.SendStream, refusals: Refusals) -> None:
        """`head` is the whole head of the client's request; `stream` takes the answer."""
        self._refusals = refusals
        self._head = head
        self._stream = stream
        self._plain = plain_handshake(head)
        self._made: WSConnection | None = None
        self._path = ""

    async def receive(self) -> HandshakeRequest | None:
        """Parse the client's request; None when it is no handshake and has been refused."""
        plain = self._plain
        if plain is not None:
            request = parsed_handshake(plain.target, plain.authorization, plain.subprotocols)
        else:
            try:
                event = self._read()
            except (RemoteProtocolError, UnicodeError) as error:
                await self._refuse_malformed(error)
                return None
            if not isinstance(event, Request):
                return None
            given = {name: value for name, value in event.extra_headers if name == b"authorization"}
            request = parsed_handshake(event.target, given.get(b"authorization", b""), tuple(event.subprotocols))
        self._path = request.path
        return request

    @property
    def _wire(self) -> WSConnection:
        if self._made is None:
            self._made = WSConnection(ConnectionType.SERVER)
        return self._made

    def _read(self) -> Event | None:
        """Read the head by wsproto. Raises RemoteProtocolError, UnicodeError."""
        self._wire.receive_data(self._head)
        return next(self._wire.events(), None)

    def acceptance(self, subprotocol: str | None = None) -> bytes:
        """The answer 101, which the caller sends."""
        if self._plain is not None:
            return self._plain.acceptance(subprotocol)
        return self._wire.send(AcceptConnection(subprotocol=subprotocol))

    async def accept(self, subprotocol: str | None = None) -> None:
        """Answer 101."""
        await self._stream.send_all(self.acceptance(subprotocol))

    async def refuse(self, error: DomainError) -> None:
        """Answer with the status, the headers and the body that REST has for this error."""
        error_id = error_id_of(error)
        # Never the query: it may carry a token.
        # The path as it was sent may have a token in it, also where none belongs.
        route = self._path if self._path in PATHS else ""
        note_refusal(self._refusals, "websocket", error, error_id=error_id, status=error.status, route=route)
        body = rest_refusal_body(error, error_id)
        headers = {
            **rest_refusal_headers(error),
            "Content-Type": "application/json; charset=utf-8",
            "Content-Length": str(len(body)),
            "Connection": "close",
        }
        answer = RejectConnection(
            status_code=error.status,
            headers=[(name.encode(), value.encode()) for name, value in headers.items()],
            has_body=True,
        )
        if self._plain is not None:
            self._read()
        await self._stream.send_all(self._wire.send(answer) + self._wire.send(RejectData(data=body)))

    async def _refuse_malformed(self, error: Exception) -> None:
        hint = getattr(error, "event_hint", None)
        if isinstance(hint, RejectConnection) and hint.status_code == 426:
            await self._stream.send_all(self._wire.send(hint))
        else:
            await self.refuse(BadRequest())


def parsed_handshake(
    target: str, header: bytes, subprotocols: tuple[str, ...] = (), *, is_in_header: bool = False
) -> HandshakeRequest:
    """The request of a target, and of the header `Authorization`. `is_in_header`: the token comes from there alone."""
    path, _, query = target.partition("?")
    parameters: dict[str, tuple[str, ...]] = {}
    authorization = None
    # Empty and malformed parameters are ignored, and so is a `?` before a name.
    for given, value in parse_qsl(query):
        name = given.lstrip("?")
        if name.lower() == "authorization":
            authorization = None if is_in_header else value
        else:
            parameters[name] = (*parameters.get(name, ()), value)
    if authorization is None:
        authorization = header.decode("latin-1")
    token = (token_in(authorization) or "") if authorization.strip() else None
    return HandshakeRequest(usual_root(path.rstrip("/")), parameters, token, subprotocols)
