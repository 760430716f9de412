"""`trunkline tail`: the live feed as lines of JSON, or one numeric field of it as sparklines."""

import os
import ssl
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
import msgspec
import trio
from trio_websocket import (
    ConnectionClosed,
    ConnectionRejected,
    HandshakeError,
    WebSocketConnection,
    wrap_client_stream,
)

from protocols.cli.failures import CommandError, leaves
from protocols.cli.options import cafile_option, trusting
from protocols.cli.simulated.websocket import why_closed
from protocols.cli.sparklines import sparkline, time_text

_TRAIL_VALUES = 40
_FIRST_WAIT_SECONDS = 1.0
_LONGEST_WAIT_SECONDS = 60.0
_SERVER_ERROR = 500
_NO_MESSAGES = frozenset({"ping", "position", "gap"})
_LOST = (ConnectionClosed, OSError, HandshakeError)
_LineOf = Callable[[str | bytes], str | bytes | None]  # None for a frame that is not shown


@click.command()
@click.option("--live", "url", metavar="URL", default="ws://127.0.0.1:8080/v1.1/live", show_default=True)
@click.option("--field", metavar="PATH", help="Print only this numeric field, with a sparkline of its last values.")
@click.option("--count", type=click.IntRange(min=1), help="Stop after this many lines.")
@cafile_option
def tail(url: str, field: str | None, count: int | None, cafile: Path | None) -> None:
    """Print each message of the live feed as it is stored, one line of JSON each.

    A user, application or device token is read from the environment variable TRUNKLINE_TOKEN. Filters such as
    `?sdids=…`, and `after=<mid>` or `since=<ms>` to begin in the past, belong to the URL. When the connection is lost,
    it is made again, and goes on behind the last message.
    """
    token = os.environ.get("TRUNKLINE_TOKEN")
    if not token:
        raise CommandError("TRUNKLINE_TOKEN must hold a token", 2)
    line_of = _whole if field is None else Trails(field).line
    try:
        trio.run(partial(_print_forever, url, token, _Printer(line_of, count), trusting(cafile)))
    except Exception as error:  # trio wraps errors in groups; what is not explained is raised again
        for leaf in leaves(error):
            if (text := _explained(leaf)) is not None:
                raise CommandError(f"{url}: {text}") from error
        raise


class _Printer:
    """Prints the lines of frames, at most `count` of them."""

    def __init__(self, line_of: _LineOf, count: int | None) -> None:
        self._line_of = line_of
        self._left = count
        #: The mid of the latest message; empty before the first one.
        self.last = ""

    @property
    def is_finished(self) -> bool:
        return self._left == 0

    def show(self, frame: str | bytes) -> None:
        kind = msgspec.json.decode(frame, type=_Kind)
        self.last = kind.mid or self.last
        if kind.type == "gap":
            click.echo("trunkline: retention has deleted messages that would come here", err=True)
        if kind.type in _NO_MESSAGES or (line := self._line_of(frame)) is None:
            return
        try:
            click.echo(line)
        except BrokenPipeError:  # whoever read the lines has gone, such as `head`: that is no lost connection
            _discard_output()
            self._left = 0
            return
        self._left = None if self._left is None else self._left - 1


def _discard_output() -> None:
    """Python flushes the standard output once more when it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


async def _print_forever(url: str, token: str, printer: _Printer, trust: ssl.SSLContext) -> None:
    """Print until enough was printed. A feed that was open once is opened again, at growing intervals."""
    wait: float | None = None  # None: it has not been open yet, so an error is the caller's to correct
    while not printer.is_finished:
        try:
            async with _feed(_behind(url, printer.last), token, trust) as socket:
                wait = _FIRST_WAIT_SECONDS
                while not printer.is_finished:
                    printer.show(await socket.get_message())
        except Exception as error:  # trio wraps errors in groups; what is not a lost connection is raised again
            lost = next((leaf for leaf in leaves(error) if isinstance(leaf, _LOST)), None)
            is_refused = isinstance(lost, ConnectionRejected) and lost.status_code < _SERVER_ERROR
            if wait is None or lost is None or is_refused:
                raise
            click.echo(f"trunkline: {_explained(lost)}; connecting again in {wait:g} s", err=True)
            await trio.sleep(wait)
            wait = min(2 * wait, _LONGEST_WAIT_SECONDS)


def _behind(url: str, mid: str) -> str:
    """The address of a feed that goes on behind a mid, if there is one."""
    if not mid:
        return url
    parts = urlsplit(url)
    kept = [one for one in parts.query.split("&") if one and one.partition("=")[0] not in {"after", "since"}]
    return parts._replace(query="&".join([*kept, f"after={mid}"])).geturl()


@asynccontextmanager
async def _feed(url: str, token: str, trust: ssl.SSLContext) -> AsyncIterator[WebSocketConnection]:
    """An open feed. The TCP stream is ours: trio-websocket leaves it open when the other side closes first."""
    parts = urlsplit(url)
    is_tls, host = parts.scheme == "wss", parts.hostname
    if parts.scheme not in {"ws", "wss"} or not host:
        raise ValueError("expected ws://… or wss://…")
    port = parts.port or (443 if is_tls else 80)
    tcp = await trio.open_tcp_stream(host, port)
    stream: trio.SocketStream | trio.SSLStream[trio.SocketStream] = tcp
    if is_tls:
        stream = trio.SSLStream(tcp, trust, server_hostname=host, https_compatible=True)
    resource = f"{parts.path or '/'}{f'?{parts.query}' if parts.query else ''}"
    headers = [(b"Authorization", f"bearer {token}".encode())]
    async with tcp, trio.open_nursery() as nursery:
        try:
            yield await wrap_client_stream(nursery, stream, parts.netloc, resource, extra_headers=headers)
        finally:
            nursery.cancel_scope.cancel()


def _whole(frame: str | bytes) -> str | bytes:
    return frame


class _Message(msgspec.Struct):
    sdid: str
    ts: int
    data: dict[str, Any]


class Trails:
    """The last values of one field, for each device."""

    def __init__(self, path: str) -> None:
        self._names = path.split(".")
        self._values: dict[str, deque[float]] = {}

    def line(self, frame: str | bytes) -> str | None:
        """The line of a message: time, device, value, and a sparkline; None for a message without the field."""
        message = msgspec.json.decode(frame, type=_Message)
        value: Any = message.data
        for name in self._names:
            value = value.get(name) if isinstance(value, dict) else None
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        values = self._values.setdefault(message.sdid, deque(maxlen=_TRAIL_VALUES))
        values.append(value)
        return f"{time_text(message.ts)}  {message.sdid}  {value:>12}  {sparkline(values)}"


class _Kind(msgspec.Struct):
    type: str = ""
    mid: str = ""


def _explained(error: BaseException) -> str | None:
    if isinstance(error, ConnectionRejected):
        return f"refused with {error.status_code} {(error.body or b'').decode(errors='replace')}"
    if isinstance(error, ConnectionClosed):
        return why_closed(error)
    if isinstance(error, OSError | HandshakeError | ValueError):
        return str(error.__cause__ or error) or type(error).__name__
    return None
