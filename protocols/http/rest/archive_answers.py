"""Archives as answers: a file of the store that is read as fast as the peer takes it."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Final
from urllib.parse import quote

import trio
from quart import Response

from broker.files import StoredFile
from protocols.http.request_context import current_request

CONTENT_TYPE: Final = "application/x-compressed"


def archive_answer(
    file: StoredFile, name: str, size: int, served: Callable[[], Awaitable[None]] | None = None
) -> Response:
    """The file as an attachment `name.tgz`. `served` is called when the peer has all of it."""
    if current_request().method == "HEAD":
        answer = Response(b"")
    else:
        answer = Response(_download(file, size, served))
        answer.timeout = None  # the peer may read slowly
    answer.headers["Content-Type"] = CONTENT_TYPE
    answer.headers["Content-Disposition"] = _attachment(f"{name}.tgz")
    answer.headers["Content-Length"] = str(size)
    return answer


def _attachment(name: str) -> str:
    """The header for a name of letters, digits, `.`, `_` and `-`; those beyond ASCII as in RFC 6266, appendix D."""
    if name.isascii():
        return f'attachment; filename="{name}"'
    plain = name.encode("ascii", "replace").decode("ascii").replace("?", "_")
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name)}"


async def _download(file: StoredFile, size: int, served: Callable[[], Awaitable[None]] | None) -> AsyncIterator[bytes]:
    position = 0
    async with aclosing(file.pieces(range(size))) as pieces:
        async for piece in pieces:
            yield piece
            position += len(piece)
    if served is not None and position == size:
        with trio.CancelScope(shield=True):  # the peer has the whole archive, and may have closed the connection
            await served()
