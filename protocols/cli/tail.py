"""`trunkline tail`: the live feed as lines of JSON, or one numeric field of it as sparklines."""

import os
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import click
import msgspec
import trio
from trio_websocket import ConnectionClosed, ConnectionRejected, HandshakeError, open_websocket_url

from protocols.cli.failures import CommandError, leaves
from protocols.cli.simulated.websocket import why_closed
from protocols.cli.sparklines import sparkline, time_text

_TRAIL_VALUES = 40
_LineOf = Callable[[str | bytes], str | bytes | None]  # None for a frame that is not shown


@click.command()
@click.option("--live", "url", metavar="URL", default="ws://127.0.0.1:8080/v1.1/live", show_default=True)
@click.option("--field", metavar="PATH", help="Print only this numeric field, with a sparkline of its last values.")
@click.option("--count", type=click.IntRange(min=1), help="Stop after this many lines.")
def tail(url: str, field: str | None, count: int | None) -> None:
    """Print each message of the live feed as it is stored, one line of JSON each.

    A user, application or device token is read from the environment variable TRUNKLINE_TOKEN. Filters such as
    `?sdids=…` belong to the URL.
    """
    token = os.environ.get("TRUNKLINE_TOKEN")
    if not token:
        raise CommandError("TRUNKLINE_TOKEN must hold a token", 2)
    try:
        trio.run(partial(_print_frames, url, token, _whole if field is None else Trails(field).line, count))
    except Exception as error:  # trio wraps errors in groups; what is not explained is raised again
        for leaf in leaves(error):
            if (text := _explained(leaf)) is not None:
                raise CommandError(f"{url}: {text}") from error
        raise


async def _print_frames(url: str, token: str, line_of: _LineOf, count: int | None) -> None:
    headers = [(b"Authorization", f"bearer {token}".encode())]
    async with open_websocket_url(url, extra_headers=headers) as socket:
        printed = 0
        while count is None or printed < count:
            frame = await socket.get_message()
            if msgspec.json.decode(frame, type=_Kind).type == "ping" or (line := line_of(frame)) is None:
                continue
            click.echo(line)
            printed += 1


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


def _explained(error: BaseException) -> str | None:
    if isinstance(error, ConnectionRejected):
        return f"refused with {error.status_code} {(error.body or b'').decode(errors='replace')}"
    if isinstance(error, ConnectionClosed):
        return why_closed(error)
    if isinstance(error, OSError | HandshakeError | ValueError):
        return str(error.__cause__ or error) or type(error).__name__
    return None
