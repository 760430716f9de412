"""HTTP requests to addresses that users or third parties choose: checked, bounded, and never redirected.

A name is resolved once, each of its addresses is checked, and the connection goes to a checked address, so a later
change of the name's addresses has no effect. Each request has a connection of its own: httpx would reuse connections by
address, but the certificate is checked for the name.
"""

import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

import httpx
import trio

_ADDRESSES_TRIED: Final = 4
#: IPv6 networks whose last 32 bits are an IPv4 address: NAT64 (RFC 6052), and what RFC 4291 2.5.5.1 calls compatible.
_WITH_IPV4: Final = (IPv6Network("64:ff9b::/96"), IPv6Network("::/96"))
#: Special networks (RFC 6890 and its registries) that `is_global` of some Python versions takes for public ones.
_NOT_PUBLIC: Final = tuple(
    map(
        ip_network,
        (
            "192.0.0.0/24",  # protocol assignments
            "192.88.99.0/24",  # 6to4 relays, withdrawn
            "fec0::/10",  # site-local, withdrawn
            "64:ff9b:1::/48",  # NAT64 of a local network (RFC 8215)
            "2001::/23",  # protocol assignments, Teredo among them
            "3fff::/20",  # documentation
            "5f00::/16",  # segment routing
        ),
    )
)
_AGENT: Final = "trunkline"

IpAddress = IPv4Address | IPv6Address


class HttpFailedError(Exception):
    """There is no usable answer. The text is one line without the request's secrets."""


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """Header names are in lower case. The values of a repeated header are joined by commas."""

    status: int
    headers: Mapping[str, str]
    body: bytes = field(repr=False)


class OutboundHttp:
    def __init__(self, context: ssl.SSLContext, *, allow_private: bool) -> None:
        """`allow_private` allows addresses of this machine and of private networks, and plain HTTP."""
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
        """Send a request and read its whole answer, with any status.

        Raises:
            HttpFailedError: a refused address, no connection, no answer within `seconds`, or more than `most_bytes`.
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
        # Without the scope id, such as `%eth0`, which only link-local addresses have.
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
        """Send to the first address that can be reached."""
        unreachable: httpx.HTTPError | None = None
        for address in addresses:
            try:
                return await self._exchange(address, method, target, headers, body, most_bytes)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                unreachable = error
        raise unreachable or HttpFailedError("the name stands for no address")

    async def _exchange(
        self,
        address: IpAddress,
        method: str,
        target: httpx.URL,
        headers: Mapping[str, str],
        body: bytes,
        most_bytes: int,
    ) -> HttpAnswer:
        sent = {"User-Agent": _AGENT, **headers, "Host": target.netloc.decode("ascii"), "Accept-Encoding": "identity"}
        # The TLS handshake names the host, and the certificate is checked for that name.
        name = target.raw_host.decode("ascii")
        extensions = {} if _is_address(name) else {"sni_hostname": name}
        client = httpx.AsyncClient(verify=self._context, trust_env=False, timeout=None)  # noqa: S113 - `send` has one
        async with (
            client,
            client.stream(
                method, target.copy_with(host=str(address)), headers=sent, content=body, extensions=extensions
            ) as answer,
        ):
            if answer.headers.get("Content-Encoding", "identity") != "identity":  # its unpacked size has no bound
                raise HttpFailedError("a packed answer, which was not asked for")
            received = await _body_of(answer, most_bytes)
            return HttpAnswer(answer.status_code, dict(answer.headers.items()), received)


async def _body_of(answer: httpx.Response, most_bytes: int) -> bytes:
    received = bytearray()
    # httpx reads through nested generators. Only an exception in the innermost one, such as Cancelled, closes all.
    with trio.CancelScope() as reading:
        async for chunk in answer.aiter_raw():
            received += chunk
            if len(received) > most_bytes:
                reading.cancel()
    if len(received) > most_bytes:
        raise HttpFailedError(f"an answer of more than {most_bytes} bytes")
    return bytes(received)


def is_public(address: IpAddress) -> bool:
    """Whether the address is in the public Internet; IPv4 addresses within IPv6 ones are checked, too."""
    if isinstance(address, IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if any(address in network for network in _WITH_IPV4):
            inner = IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(inner)
    special = address.is_multicast or any(address in network for network in _NOT_PUBLIC)
    return address.is_global and not special


def _is_address(host: str) -> bool:
    try:
        ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


def _one_line(error: BaseException) -> str:
    """The text of an error, or of the error that caused it: TLS errors have their reason there."""
    origin: BaseException | None = error
    while origin is not None and not str(origin):
        origin = origin.__cause__ or origin.__context__
    return "".join(character if character.isprintable() else " " for character in str(origin or ""))[:200]
