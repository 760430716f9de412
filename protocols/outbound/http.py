"""HTTP requests to addresses that users or third parties choose: checked, bounded, and never redirected.

For each connection the name is resolved once, each of its addresses is checked, and the connection goes to a checked
address, so a later change of the name's addresses has no effect. The certificate is checked for the name.
"""

import os
import socket
import ssl
from collections import OrderedDict
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

import h11
import httpx
import trio

from protocols.outbound.addresses import PrivateAddressError, resolve
from protocols.outbound.connections import Connection, ConnectionLost, HttpAnswer, HttpRequest

__all__ = ["HttpAnswer", "HttpFailedError", "OutboundHttp"]

_AGENT: Final = "trunkline"
_IDLE_CONNECTIONS: Final = 512

#: Scheme, name and port. A kept connection serves only the origin for which its address and certificate were checked.
_Origin = tuple[str, str, int]


class HttpFailedError(Exception):
    """There is no usable answer. The text is one line without the request's secrets."""


class OutboundHttp:
    def __init__(self, context: ssl.SSLContext, *, allow_private: bool, idle_seconds: float = 0) -> None:
        """Args:
        allow_private: allows addresses of this machine and of private networks, and plain HTTP.
        idle_seconds: how long a connection is kept for the next request to the same origin; 0 keeps none. A caller that
            keeps connections calls `close_idle` now and then, and `close` at the end.
        """
        self._context = context
        self._allow_private = allow_private
        self._idle_seconds = idle_seconds
        #: Kept connections, the least recently used first.
        self._idle: OrderedDict[Connection, _Origin] = OrderedDict()
        self._idle_of: dict[_Origin, list[Connection]] = {}

    async def send(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        body: bytes = b"",
        seconds: float,
        most_bytes: int,
        may_cut: bool = False,
    ) -> HttpAnswer:
        """Send a request and read its answer, with any status.

        Of a longer answer than `most_bytes`, `may_cut` gives the first bytes; without it, that answer is an error.

        Raises:
            HttpFailedError: a refused address, no connection, no answer within `seconds`, or more than `most_bytes`.
        """
        with trio.move_on_after(seconds):
            try:
                origin, request = self._request(method, url, headers, body)
                answer = await self._send(origin, request, most_bytes)
            except httpx.InvalidURL as error:
                raise HttpFailedError("no address of HTTP") from error
            except (PrivateAddressError, ConnectionLost) as error:
                raise HttpFailedError(str(error)) from error
            except (trio.BrokenResourceError, h11.ProtocolError, ValueError, OSError) as error:
                raise HttpFailedError(_plain(error)) from error
            if not may_cut:
                _refuse_unbounded(answer, most_bytes)
            return answer
        raise HttpFailedError(f"no answer within {seconds:g} s")

    async def check(self, url: str, *, seconds: float) -> None:
        """Raises HttpFailedError when requests to the address would be refused; not when it cannot be reached now."""
        with trio.move_on_after(seconds):
            try:
                (_, name, port), _ = self._request("POST", url, {}, b"")
                await resolve(name, port, allow_private=self._allow_private)
            except httpx.InvalidURL as error:
                raise HttpFailedError("no address of HTTP") from error
            except PrivateAddressError as error:
                raise HttpFailedError(str(error)) from error
            except OSError:
                return

    def _request(self, method: str, url: str, headers: Mapping[str, str], body: bytes) -> tuple[_Origin, HttpRequest]:
        """The origin of the request, and the request. Raises HttpFailedError for an address that is never allowed."""
        target = _parsed(url)
        if target.scheme != "https" and not (target.scheme == "http" and self._allow_private):
            raise HttpFailedError("the address is not https")
        if not target.host or target.userinfo:
            raise HttpFailedError("the address has no host, or a user name")
        given = {"user-agent": _AGENT, **{name.lower(): value for name, value in headers.items()}}
        given |= {"host": target.netloc.decode("ascii"), "accept-encoding": "identity"}
        if body or method not in {"GET", "HEAD"}:
            given["content-length"] = str(len(body))
        sent = [(name.title().encode("ascii"), value.encode("utf-8")) for name, value in given.items()]
        name = target.raw_host.decode("ascii").strip("[]")
        origin = (target.scheme, name, target.port or (443 if target.scheme == "https" else 80))
        return origin, HttpRequest(method, target.raw_path, sent, body)

    async def _send(self, origin: _Origin, request: HttpRequest, most_bytes: int) -> HttpAnswer:
        while (kept := self._taken(origin)) is not None:
            if not kept.is_usable:
                await kept.close()
                continue
            try:
                return await self._exchange(origin, kept, request, most_bytes)
            except ConnectionLost:  # the server closed the idle connection in this moment: a new one decides
                break
        return await self._exchange(origin, await self._opened(origin), request, most_bytes)

    async def _exchange(
        self, origin: _Origin, connection: Connection, request: HttpRequest, most_bytes: int
    ) -> HttpAnswer:
        is_kept = False
        try:
            answer = await connection.exchange(request, most_bytes=most_bytes)
            is_kept = self._idle_seconds > 0 and connection.is_usable and self._keep(origin, connection)
        finally:
            if not is_kept:
                await connection.close()
        return answer

    async def _opened(self, origin: _Origin) -> Connection:
        """Connect to the first address of the name that can be reached."""
        scheme, name, port = origin
        context = self._context if scheme == "https" else None
        unreachable: Exception = OSError("the name stands for no address")
        for address in await resolve(name, port, allow_private=self._allow_private):
            try:
                return await Connection.open(str(address), port, context=context, name=name)
            except ssl.SSLError:
                raise
            except (OSError, trio.BrokenResourceError) as error:
                unreachable = error
        raise HttpFailedError(f"no connection: {_plain(unreachable)}") from unreachable

    # Kept connections

    def _taken(self, origin: _Origin) -> Connection | None:
        """The connection to this origin that was used last."""
        waiting = self._idle_of.get(origin)
        if not waiting:
            return None
        connection = waiting.pop()
        if not waiting:
            del self._idle_of[origin]
        del self._idle[connection]
        return connection

    def _keep(self, origin: _Origin, connection: Connection) -> bool:
        if len(self._idle) >= _IDLE_CONNECTIONS:
            return False
        connection.idle_since = trio.current_time()
        self._idle[connection] = origin
        self._idle_of.setdefault(origin, []).append(connection)
        return True

    async def close_idle(self) -> None:
        """Close the connections that were not used for `idle_seconds`."""
        await self._close_unused_since(trio.current_time() - self._idle_seconds)

    async def close(self) -> None:
        """Close every connection that no request uses."""
        await self._close_unused_since(float("inf"))

    async def _close_unused_since(self, moment: float) -> None:
        while self._idle:
            connection, origin = next(iter(self._idle.items()))
            if connection.idle_since > moment:
                return
            del self._idle[connection]
            waiting = self._idle_of[origin]
            waiting.remove(connection)
            if not waiting:
                del self._idle_of[origin]
            await connection.close()


@lru_cache(maxsize=4096)
def _parsed(url: str) -> httpx.URL:
    """Raises httpx.InvalidURL."""
    return httpx.URL(url)


def _refuse_unbounded(answer: HttpAnswer, most_bytes: int) -> None:
    if answer.headers.get("content-encoding", "identity") != "identity":  # its unpacked size has no bound
        raise HttpFailedError("a packed answer, which was not asked for")
    if answer.is_cut:
        raise HttpFailedError(f"an answer of more than {most_bytes} bytes")


def _plain(error: BaseException) -> str:
    """The error as a text for people who know neither Python's classes nor `errno`."""
    if isinstance(error, socket.gaierror):
        return "the name of the host cannot be resolved"
    # trio's "all attempts to connect failed" has the reasons in its cause.
    why = error.__cause__
    for one in (why.exceptions[0] if isinstance(why, BaseExceptionGroup) else why, error):
        if isinstance(one, OSError) and not isinstance(one, ssl.SSLError) and one.errno:
            return os.strerror(one.errno).lower()
    return _one_line(error) or type(error).__name__


def _one_line(error: BaseException) -> str:
    """The text of an error, or of the error that caused it: TLS errors have their reason there."""
    origin: BaseException | None = error
    while origin is not None and not str(origin):
        origin = origin.__cause__ or origin.__context__
    return "".join(character if character.isprintable() else " " for character in str(origin or ""))[:200]
