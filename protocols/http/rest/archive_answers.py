"""Archives as answers: a file that is read as fast as the peer takes it."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import trio
from quart import Response

from broker.errors import Gone
from protocols.http.this_request import this_request

CONTENT_TYPE: Final = "application/x-compressed"
_CHUNK_BYTES: Final = 256 * 1024


async def archive_answer(
    path: Path, name: str, size: int, served: Callable[[], Awaitable[None]] | None = None
) -> Response:
    """The file as an attachment `name.tgz`. `served` is called when the peer has all of it. Raises Gone."""
    try:
        file = await trio.open_file(path, "rb")
    except FileNotFoundError as error:  # the archive has just expired
        raise Gone from error
    if this_request().method == "HEAD":
        await file.aclose()
        answer = Response(b"")
    else:
        answer = Response(_download(file, served))
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


async def _download(file: Any, served: Callable[[], Awaitable[None]] | None) -> AsyncIterator[bytes]:
    async with file:
        while chunk := await file.read(_CHUNK_BYTES):
            yield chunk
    if served is not None:
        with trio.CancelScope(shield=True):  # the peer has the whole archive, and may have closed the connection
            await served()
