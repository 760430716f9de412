"""The address of an upstream (reference 30)."""

from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

import msgspec

_PORTS: Final = {"http": 80, "https": 443, "mqtt": 1883, "mqtts": 8883}


class ForwardTarget(msgspec.Struct, frozen=True):
    """`path` is that of the address, without a `/` at its end."""

    scheme: str
    host: str
    port: int
    path: str

    @classmethod
    def parse(cls, text: str) -> "ForwardTarget":
        """Raises ValueError with the reason."""
        expected = "expected https://…, mqtts://…, http://… or mqtt://… with a host"
        if not text.isascii() or not text.isprintable() or " " in text or "\\" in text:
            raise ValueError(expected)
        parts = urlsplit(text)
        port = parts.port  # raises ValueError
        if parts.scheme not in _PORTS or not parts.hostname:
            raise ValueError(expected)
        if parts.username is not None or parts.query or parts.fragment:
            raise ValueError("expected an address without user, query and fragment; token_file has the secret")
        path = parts.path.rstrip("/")
        if path and parts.scheme in {"mqtt", "mqtts"}:
            raise ValueError("expected an address of a broker without a path")
        return cls(parts.scheme, parts.hostname, port or _PORTS[parts.scheme], path)

    @property
    def is_broker(self) -> bool:
        return self.scheme in {"mqtt", "mqtts"}

    @property
    def is_secure(self) -> bool:
        return self.scheme in {"https", "mqtts"}

    @property
    def is_loopback(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def root(self) -> str:
        """Where the paths of the upstream begin."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.path}"
