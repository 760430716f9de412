"""The application's side of a redirect: a small server on loopback that records which URLs browsers request."""

import queue
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, urlsplit

from tests.served import served

_TIMEOUT_SECONDS: Final = 60
_PAGE: Final = b"<!doctype html><html lang=en><title>Back</title><h1>Back at the application</h1></html>"


class Callback:
    """Every path is the redirect URI of an application."""

    def __init__(self, origin: str) -> None:
        self.origin = origin
        self._heard: queue.Queue[str] = queue.Queue()

    def url(self, path: str) -> str:
        return f"{self.origin}/{path}"

    def hear(self, target: str) -> None:
        self._heard.put(self.origin + target)

    def take(self) -> str:
        """The next URL that the browser requested, without the fragment, which browsers do not send."""
        return self._heard.get(timeout=_TIMEOUT_SECONDS)

    def forget(self) -> None:
        while not self._heard.empty():
            self._heard.get_nowait()


def query_of(url: str) -> dict[str, str]:
    """The parameters of a URL, none of which is repeated."""
    return {name: value for name, (value,) in parse_qs(urlsplit(url).query, strict_parsing=True).items()}


@contextmanager
def running_callback(certificate: Path) -> Iterator[Callback]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path != "/favicon.ico":
                callback.hear(self.path)
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(_PAGE)))
            self.end_headers()
            self.wfile.write(_PAGE)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name in the standard library
            pass

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_name("key.pem"))
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    # The handshake runs in the thread of its connection: browsers open connections that they may never use.
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    callback = Callback(f"https://127.0.0.1:{server.server_address[1]}")
    with served(server):
        yield callback
