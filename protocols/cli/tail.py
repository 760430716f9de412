"""`trunkline tail`: the live feed as lines of JSON."""

import os
from functools import partial

import click
import msgspec
import trio
from trio_websocket import ConnectionClosed, ConnectionRejected, HandshakeError, open_websocket_url

from protocols.cli.failures import CommandError, leaves
from protocols.cli.simulated.websocket import why_closed


@click.command()
@click.option("--live", "url", metavar="URL", default="ws://127.0.0.1:8080/v1.1/live", show_default=True)
@click.option("--count", type=click.IntRange(min=1), help="Stop after this many messages.")
def tail(url: str, count: int | None) -> None:
    """Print each message of the live feed as it is stored, one line of JSON each.

    A user, application or device token is read from the environment variable TRUNKLINE_TOKEN. Filters such as
    `?sdids=…` belong to the URL.
    """
    token = os.environ.get("TRUNKLINE_TOKEN")
    if not token:
        raise CommandError("TRUNKLINE_TOKEN must hold a token", 2)
    try:
        trio.run(partial(_print_frames, url, token, count))
    except Exception as error:
        for leaf in leaves(error):
            if (text := _explained(leaf)) is not None:
                raise CommandError(f"{url}: {text}") from error
        raise


async def _print_frames(url: str, token: str, count: int | None) -> None:
    headers = [(b"Authorization", f"bearer {token}".encode())]
    async with open_websocket_url(url, extra_headers=headers) as socket:
        printed = 0
        while count is None or printed < count:
            frame = await socket.get_message()
            if msgspec.json.decode(frame, type=_Kind).type == "ping":
                continue
            click.echo(frame)
            printed += 1


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
