"""An HTTP client for tests that make thousands of calls.

Of the time of a call that a test makes with httpx, the server takes a quarter: this client saves at least 15 s of
processor time in a run. The clients of tests/e2e are httpx itself and those of others, and the bytes of answers are
looked at in test_connection.py and test_server.py.
"""

import ssl
from collections.abc import Mapping
from typing import Any, Final

import httpx
import trio

from config.settings import Address

#: Without it, each client reads the authorities that it trusts.
_NO_TLS: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
_BODILESS: Final = {204, 304}
_SECONDS: Final = 60  # a busy machine is slow


class DirectClient(httpx.AsyncClient):
    """Makes the request and the answer as httpx does, and writes and reads the bytes between them itself.

    Redirects that it is to follow, bodies without a length and calls to other servers are left to httpx.
    """

    def __init__(self, address: Address, root: str = "/v1.1") -> None:
        super().__init__(base_url=f"http://{address}{root}", timeout=_SECONDS, verify=_NO_TLS)
        self._address = address
        self._idle: list[trio.SocketStream] = []

    async def request(self, method: str, url: httpx.URL | str, **given: Any) -> httpx.Response:
        if given.keys() & {"follow_redirects", "auth", "extensions", "timeout"}:
            return await super().request(method, url, **given)
        request = self.build_request(method, url, **given)
        is_own = (request.url.scheme, request.url.netloc.decode()) == ("http", str(self._address))
        if not is_own or "transfer-encoding" in request.headers:
            return await self.send(request)
        lines = [b"%b %b HTTP/1.1" % (request.method.encode(), request.url.raw_path)]
        lines += [b"%b: %b" % line for line in request.headers.raw]
        sent = b"\r\n".join([*lines, b"", await request.aread()])
        while True:
            is_fresh = not self._idle
            stream = await self._open() if is_fresh else self._idle.pop()
            try:
                with trio.fail_after(_SECONDS):
                    answer = await _exchange(stream, sent, method)
            except BaseException:
                await trio.aclose_forcefully(stream)
                raise
            if answer is None:  # the server had closed it while it was idle
                await trio.aclose_forcefully(stream)
                assert not is_fresh, "no answer came"
                continue
            status, head, body, is_last = answer
            if is_last:
                await trio.aclose_forcefully(stream)
            else:
                self._idle.append(stream)
            response = httpx.Response(status, headers=head, content=body, request=request)
            if "set-cookie" in response.headers:
                self.cookies.extract_cookies(response)
            return response

    async def _open(self) -> trio.SocketStream:
        return await trio.open_tcp_stream(self._address.host, self._address.port)

    async def __aexit__(self, *error: Any) -> None:
        for stream in self._idle:
            await trio.aclose_forcefully(stream)
        await super().__aexit__(*error)


_Answer = tuple[int, list[tuple[bytes, bytes]], bytes, bool]


async def _exchange(stream: trio.SocketStream, sent: bytes, method: str) -> _Answer | None:
    """The status, the head and the body of the answer, and whether the connection ends with it."""
    received = bytearray()

    async def until(is_whole: Any) -> bool:
        while not is_whole():
            if not (chunk := await stream.receive_some()):
                return False
            received.extend(chunk)
        return True

    try:
        await stream.send_all(sent)
        while True:
            if not await until(lambda: b"\r\n\r\n" in received):
                assert not received, f"only a part of a head came: {bytes(received)!r}"
                return None
            head, _, received[:] = bytes(received).partition(b"\r\n\r\n")
            first, *lines = head.split(b"\r\n")
            if (status := int(first.split(b" ", 2)[1])) >= 200:
                break
    except trio.BrokenResourceError:
        return None
    raw = [(name, value.strip()) for name, _, value in (line.partition(b":") for line in lines)]
    fields: Mapping[bytes, bytes] = {name.lower(): value for name, value in raw}
    is_last = fields.get(b"connection", b"").lower() == b"close"
    if method == "HEAD" or status in _BODILESS:
        assert not received, "a body came that must not"
    elif fields.get(b"transfer-encoding", b"").lower() == b"chunked":
        assert await until(lambda: received.endswith(b"0\r\n\r\n")), "the last chunk is missing"
        return status, raw, _joined(bytes(received)), is_last
    elif (length := fields.get(b"content-length")) is not None:
        assert await until(lambda: len(received) >= int(length)), "the body is shorter than it says"
        assert len(received) == int(length), "the body is longer than it says"
    else:
        await until(lambda: False)
    return status, raw, bytes(received), is_last


def _joined(chunks: bytes) -> bytes:
    body = b""
    while chunks:
        size, _, rest = chunks.partition(b"\r\n")
        length = int(size.split(b";")[0], 16)
        body += rest[:length]
        assert rest[length : length + 2] == b"\r\n", "a chunk has another length than it says"
        chunks = rest[length + 2 :] if length else b""
    return body
