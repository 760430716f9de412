"""A part of something that does not change, as the request asks for it (RFC 9110, 14.2)."""

import re
from typing import Final

from quart import Response

from protocols.http.request_context import current_request

_RANGE: Final = re.compile(r"bytes=(?:([0-9]{1,15})-([0-9]{1,15})?|-([0-9]{1,15}))")


def answer_to_range(size: int, digest: str) -> tuple[Response, range | None]:
    """The answer without its body, and the bytes that go into it; None for a 416. `digest` makes the ETag.

    Several ranges, and what is no range of bytes, are ignored, as the RFC allows. A request with the ETag in
    If-None-Match gets 304 and no bytes.
    """
    etag = f'"{digest}"'
    headers = {"ETag": etag, "Accept-Ranges": "bytes"}
    if etag in current_request().header(b"if-none-match").replace(" ", "").split(","):
        return Response(b"", 304, headers=headers), range(0)
    wanted = _wanted(size, etag)
    if wanted is None:
        return Response(b"", 416, headers={**headers, "Content-Range": f"bytes */{size}"}), None
    if len(wanted) == size:
        return Response(b"", 200, headers=headers), wanted
    headers["Content-Range"] = f"bytes {wanted.start}-{wanted.stop - 1}/{size}"
    return Response(b"", 206, headers=headers), wanted


def _wanted(size: int, etag: str) -> range | None:
    request = current_request()
    match = _RANGE.fullmatch(request.header(b"range").replace(" ", ""))
    if match is None or (request.header(b"if-range") or etag) != etag:
        return range(size)
    first, last, length = (None if part is None else int(part) for part in match.groups())
    if length is not None:
        return range(max(0, size - length), size) if length else None
    start, stop = first or 0, size if last is None else min(size, last + 1)
    if last is not None and last < start:  # no valid range
        return range(size)
    return range(start, stop) if start < size else None
