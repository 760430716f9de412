"""The client behind a trusted proxy: `X-Forwarded-For` and `Forwarded` (RFC 7239; reference 25.4).

Each proxy appends the address that it got the request from, so the list is read from its end: the client is the last
address that is not itself a trusted proxy. The client may have written the addresses before it.

A client may also send the header that the proxy does not write. Then the two headers name different clients, and
neither counts.
"""

import re
from collections.abc import Iterable
from typing import Final

from protocols.streams.proxies import TrustedProxies, plain_address

_FOR: Final = re.compile(r'(?:^|;)\s*for=(?:"([^"\\]*)"|([^;"\s]*))', re.IGNORECASE)
_PROTO: Final = re.compile(r'(?:^|;)\s*proto="?(https?)"?\s*(?:;|$)', re.IGNORECASE)
_PORT: Final = re.compile(r"(?:\[([^\]]*)\]|([0-9.]+))(?::[0-9_A-Za-z.\-]+)?")
#: Of a longer list, only the end is read.
_HOPS: Final = 20

Headers = Iterable[tuple[bytes, bytes]]


class Forwarded:
    """The headers of one request of a trusted proxy."""

    def __init__(self, headers: Headers) -> None:
        self._plain = _elements(headers, b"x-forwarded-for")
        self._standard = _elements(headers, b"forwarded")
        self._protocols = _elements(headers, b"x-forwarded-proto")

    def client(self, proxy: str, proxies: TrustedProxies) -> str:
        """The address of the client; that of the proxy where the headers do not say it."""
        found = {
            _client(hops, proxy, proxies)
            for hops in (self._plain, [_for(element) for element in self._standard])
            if hops
        }
        return found.pop() if len(found) == 1 else proxy

    @property
    def is_https(self) -> bool | None:
        """Whether the client's connection to the last proxy is encrypted; None where the headers do not say it."""
        protocols = [one.strip().lower() for one in self._protocols[-1:]]
        if self._standard and (named := _PROTO.search(self._standard[-1])) is not None:
            protocols.append(named[1].lower())
        return None if not protocols else all(one == "https" for one in protocols)


def _elements(headers: Headers, wanted: bytes) -> list[str]:
    """The last elements of a header that is a list; it may come in several lines."""
    lines = [value.decode("latin-1") for name, value in headers if name.lower() == wanted]
    return ",".join(lines).rsplit(",", _HOPS)[-_HOPS:] if lines else []


def _for(element: str) -> str:
    match = _FOR.search(element)
    return "" if match is None else match[1] or match[2] or ""


def _client(hops: list[str], proxy: str, proxies: TrustedProxies) -> str:
    """Walk from the proxy towards the client, as far as trusted proxies have written addresses."""
    client = proxy
    for hop in reversed(hops):
        if not proxies.trusts(client):
            break
        address = _address(hop.strip())
        if address is None:  # `unknown`, or a name that hides the address
            break
        client = address
    return client


def _address(hop: str) -> str | None:
    """An address that may have a port; one of IPv6 with a port, and each one of IPv6 in `Forwarded`, has brackets."""
    address = plain_address(hop)
    if address is None and (match := _PORT.fullmatch(hop)) is not None:
        address = plain_address(match[1] or match[2] or "")
    return None if address is None else str(address)
