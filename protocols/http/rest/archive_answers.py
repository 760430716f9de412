"""Archives as answers: a file of the store that is read as fast as the peer takes it, from wherever it asks for."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Final
from urllib.parse import quote

import trio
from quart import Response

from broker.files import StoredFile
from protocols.http.ranges import answer_to_range
from protocols.http.request_context import current_request

CONTENT_TYPE: Final = "application/x-compressed"
ZIP: Final = "application/zip"


def archive_answer(
    file: StoredFile, name: str, digest: str, served: Callable[[], Awaitable[None]] | None = None
) -> Response:
    """The file, or the part of it that the request asks for, as an attachment.

    `digest` is of the content: its ETag. `served` is called when the peer has the end of it.
    """
    answer, wanted = answer_to_range(file.size, digest)
    if wanted is not None and current_request().method != "HEAD":
        answer.response = Response(_download(file, wanted, served)).response
        answer.timeout = None  # the peer may read slowly
    answer.headers["Content-Type"] = ZIP if name.endswith(".zip") else CONTENT_TYPE
    answer.headers["Content-Disposition"] = _attachment(name)
    answer.headers["Content-Length"] = str(0 if wanted is None else len(wanted))
    return answer


def _attachment(name: str) -> str:
    """The header for a name of letters, digits, `.`, `_` and `-`; those beyond ASCII as in RFC 6266, appendix D."""
    if name.isascii():
        return f'attachment; filename="{name}"'
    plain = name.encode("ascii", "replace").decode("ascii").replace("?", "_")
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name)}"


async def _download(
    file: StoredFile, wanted: range, served: Callable[[], Awaitable[None]] | None
) -> AsyncIterator[bytes]:
    position = wanted.start
    async with aclosing(file.pieces(wanted)) as pieces:
        async for piece in pieces:
            yield piece
            position += len(piece)
    if served is not None and position == file.size:
        with trio.CancelScope(shield=True):  # the peer has the whole archive, and may have closed the connection
            await served()
