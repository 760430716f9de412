"""Saves what most HTTP clients of tests do for nothing: they live for one test, without TLS and without cookies."""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Final

import httpx
import pytest
from httpx import _urlparse

_ADDRESSES: Final = 1_000


@contextmanager
def quick_clients(authority: Path) -> Iterator[None]:
    """Until the block ends, TLS trusts the authority in this file, and nothing is done twice or in vain.

    Every client reads the authorities that its machine trusts. To read the usual 150 takes 28 ms, one 1 ms; and clients
    that are told nothing of TLS share what was read. To look for cookies takes as long as to read an answer: it is only
    done where the answer sets one. Each request reads its address four times, and the tests have few addresses.
    """
    shared = ssl.create_default_context(cafile=authority)
    extract_cookies = httpx.Cookies.extract_cookies

    def create_ssl_context(verify: ssl.SSLContext | bool = True, cert: None = None, **options: bool) -> ssl.SSLContext:
        return shared if verify is True and cert is None else httpx.create_ssl_context(verify, cert, **options)

    def extract_if_set(cookies: httpx.Cookies, response: httpx.Response) -> None:
        if "set-cookie" in response.headers:
            extract_cookies(cookies, response)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(authority))
        patch.delenv("SSL_CERT_DIR", raising=False)
        patch.setattr("httpx._transports.default.create_ssl_context", create_ssl_context)
        patch.setattr("httpx._urls.urlparse", lru_cache(_ADDRESSES)(_urlparse.urlparse))
        patch.setattr(httpx.Cookies, "extract_cookies", extract_if_set)
        yield
