"""HTTP requests to addresses that others have a say in: checked, bounded, and never redirected.

A name is resolved once, every address that it stands for is checked, and the connection goes to an address that was
checked: what the name stands for a moment later does not matter. Each request has a connection of its own, because the
certificate is checked for the name, and connections are kept by address.
"""

import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import Final

import httpx
import trio

_ADDRESSES_TRIED: Final = 4
_NAT64: Final = IPv6Network("64:ff9b::/96")
_AGENT: Final = "trunkline"

IpAddress = IPv4Address | IPv6Address


class HttpFailedError(Exception):
    """There is no answer that can be used. The text is one line without the request's secrets."""


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """Header names are in lower case; of one that comes twice, the values are joined by commas."""

    status: int
    headers: Mapping[str, str]
    body: bytes = field(repr=False)


class OutboundHttp:
    def __init__(self, context: ssl.SSLContext, *, allow_private: bool) -> None:
        """`allow_private`: also to addresses of this machine and of its own networks, and there without TLS."""
        self._context = context
        self._allow_private = allow_private

    async def send(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        body: bytes = b"",
        seconds: float,
        most_bytes: int,
    ) -> HttpAnswer:
        """Send a request and read its whole answer, whatever its status.

        Raises HttpFailedError: a refused address, no connection, nothing within `seconds`, more than `most_bytes`.
        """
        with trio.move_on_after(seconds):
            try:
                target = self._target(url)
                addresses = await self._resolved(target)
                return await self._send_to(addresses, method, target, headers, body, most_bytes)
            except httpx.InvalidURL as error:
                raise HttpFailedError("no address of HTTP") from error
            except (httpx.HTTPError, httpx.StreamError, ValueError, OSError) as error:
                raise HttpFailedError(f"{type(error).__name__}: {_one_line(error)}") from error
        raise HttpFailedError(f"no answer within {seconds:g} s")

    def _target(self, url: str) -> httpx.URL:
        target = httpx.URL(url)
        if target.scheme != "https" and not (target.scheme == "http" and self._allow_private):
            raise HttpFailedError("the address is not https")
        if not target.host or target.userinfo:
            raise HttpFailedError("the address has no host, or a user name")
        return target

    async def _resolved(self, target: httpx.URL) -> Sequence[IpAddress]:
        host, port = (
            target.raw_host.decode("ascii").strip("[]"),
            target.port or (443 if target.scheme == "https" else 80),
        )
        found = await trio.socket.getaddrinfo(host, port, type=trio.socket.SOCK_STREAM)
        # A scope belongs to addresses of this network only.
        addresses = list(dict.fromkeys(ip_address(str(entry[4][0]).partition("%")[0]) for entry in found))
        if not self._allow_private and not all(map(is_public, addresses)):
            raise HttpFailedError("the address is private")
        return addresses[:_ADDRESSES_TRIED]

    async def _send_to(
        self,
        addresses: Sequence[IpAddress],
        method: str,
        target: httpx.URL,
        headers: Mapping[str, str],
        body: bytes,
        most_bytes: int,
    ) -> HttpAnswer:
        """To the first address that can be reached."""
        unreachable: httpx.HTTPError | None = None
        for address in addresses:
            try:
                return await self._converse(address, method, target, headers, body, most_bytes)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                unreachable = error
        raise unreachable or HttpFailedError("the name stands for no address")

    async def _converse(
        self,
        address: IpAddress,
        method: str,
        target: httpx.URL,
        headers: Mapping[str, str],
        body: bytes,
        most_bytes: int,
    ) -> HttpAnswer:
        sent = {"User-Agent": _AGENT, **headers, "Host": target.netloc.decode("ascii"), "Accept-Encoding": "identity"}
        # The name goes into the handshake, and the certificate is checked for it.
        name = target.raw_host.decode("ascii")
        extensions = {} if _is_address(name) else {"sni_hostname": name}
        client = httpx.AsyncClient(verify=self._context, trust_env=False, timeout=None)  # noqa: S113 - `send` has one
        async with (
            client,
            client.stream(
                method, target.copy_with(host=str(address)), headers=sent, content=body, extensions=extensions
            ) as answer,
        ):
            if answer.headers.get("Content-Encoding", "identity") != "identity":  # it could be anything once unpacked
                raise HttpFailedError("a packed answer, which was not asked for")
            received = await _body_of(answer, most_bytes)
            return HttpAnswer(answer.status_code, dict(answer.headers.items()), received)


async def _body_of(answer: httpx.Response, most_bytes: int) -> bytes:
    received = bytearray()
    # httpx reads through generators inside each other. Only what is raised in the innermost one ends all of them.
    with trio.CancelScope() as reading:
        async for chunk in answer.aiter_raw():
            received += chunk
            if len(received) > most_bytes:
                reading.cancel()
    if len(received) > most_bytes:
        raise HttpFailedError(f"an answer of more than {most_bytes} bytes")
    return bytes(received)


def is_public(address: IpAddress) -> bool:
    """It is somewhere in the Internet, also behind what it may be wrapped into."""
    if isinstance(address, IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if address in _NAT64:
            inner = IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(inner)
    return address.is_global and not address.is_multicast


def _is_address(host: str) -> bool:
    try:
        ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


def _one_line(error: BaseException) -> str:
    """What is known of it. TLS says why only in what it was raised from."""
    origin: BaseException | None = error
    while origin is not None and not str(origin):
        origin = origin.__cause__ or origin.__context__
    return "".join(character if character.isprintable() else " " for character in str(origin or ""))[:200]
