"""The trusted proxies in front of this daemon: their headers name the client's address (reference 25.4)."""

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

import msgspec

from config.settings import Settings


def plain_address(text: str) -> IPv4Address | IPv6Address | None:
    """An IP address, an IPv4 address also within an IPv6 one and without the zone; None for anything else."""
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address if mapped is None else mapped


class TrustedProxies(msgspec.Struct, frozen=True):
    """The setting `http.trusted_proxies`, and whether their connections begin with a header of the PROXY protocol."""

    networks: tuple[IPv4Network | IPv6Network, ...] = ()
    send_header: bool = False

    @classmethod
    def of(cls, settings: Settings) -> "TrustedProxies":
        return cls(settings.http.proxies, settings.http.proxy_protocol == "required")

    def trusts(self, address: str) -> bool:
        """Whether a connection from this IP address is one of a trusted proxy."""
        parsed = plain_address(address) if self.networks else None
        return parsed is not None and any(parsed in network for network in self.networks)
