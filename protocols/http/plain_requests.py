"""Requests that are read without h11: the forms that nearly every client uses, and no others.

What is plain here, h11 would read in the same way. Everything else is not plain: other versions than HTTP/1.1, escapes
in the path, transfer and content codings, `Expect`, `Upgrade`, `Connection` with anything but `keep-alive`, headers
twice of which there is one, folded or non-ASCII lines, long bodies.
"""

import re
from dataclasses import dataclass
from typing import Final

from config.limits import UNCOUNTED_BODY_BYTES
from protocols.http.forwarded import Headers
from protocols.http.heads import HEAD_BYTES
from protocols.roots import usual_root

_PATH_BYTES: Final = 200
_HEAD: Final = re.compile(
    rb"(GET|POST|PUT|DELETE) ((?:/[A-Za-z0-9_.~-]+){1,12})(?:\?([!\"$-~]*))? HTTP/1\.1\r\n"
    rb"((?:[A-Za-z0-9_-]+:[\t -~]*\r\n)+)\r\n"
)
_HOST: Final = re.compile(rb"[A-Za-z0-9.:\[\]-]+")
_LENGTH: Final = re.compile(rb"[0-9]{1,15}")
#: Headers of requests that are not plain.
_REFUSED: Final = frozenset(
    {b"content-encoding", b"expect", b"trailer", b"transfer-encoding", b"upgrade", b"http2-settings"}
)
#: Of each of these there is one at most.
_SINGLE: Final = frozenset({b"authorization", b"connection", b"content-length", b"host"})


@dataclass(frozen=True, slots=True)
class PlainRequest:
    method: str
    path: str
    query: bytes
    authorization: str
    headers: Headers  # names in lower case
    head_length: int
    body_length: int


def plain_request(received: bytes, *, longest_body: int | None = UNCOUNTED_BODY_BYTES) -> PlainRequest | None:
    """The request that these bytes begin with, whose body may be missing yet; None for one that is not plain, or whose
    body is longer than `longest_body` bytes."""
    match = _HEAD.match(received)
    if match is None or match.end() > HEAD_BYTES:
        return None
    method, path, query, lines = match.groups(b"")
    if len(path) > _PATH_BYTES:
        return None
    headers = []
    single: dict[bytes, bytes] = {}
    for line in lines.split(b"\r\n")[:-1]:
        name, _, value = line.partition(b":")
        name, value = name.lower(), value.strip(b"\t ")
        if name in _REFUSED or name in single:
            return None
        if name in _SINGLE:
            single[name] = value
        headers.append((name, value))
    length = single.get(b"content-length", b"0")
    if (
        _HOST.fullmatch(single.get(b"host", b"")) is None
        or single.get(b"connection", b"keep-alive").lower() != b"keep-alive"
        or _LENGTH.fullmatch(length) is None
        or (longest_body is not None and int(length) > longest_body)
    ):
        return None
    return PlainRequest(
        method.decode("ascii"),
        usual_root(path.decode("ascii")),
        query,
        single.get(b"authorization", b"").decode("ascii"),
        headers,
        match.end(),
        int(length),
    )
