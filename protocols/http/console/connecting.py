"""Where devices connect, as the page of a device shows it: host and port by protocol, and the certificate."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes

from broker.site import Site
from config.settings import Address, Settings

#: The listeners that are shown, by protocol: with TLS first, because that is what a device on a network should use.
_LISTENERS: Final = {
    "mqtt": ("mqtts", "mqtt"),
    "coap": ("coaps", "coap"),
    "lwm2m": ("lwm2m_dtls",),
}
_EVERYWHERE: Final = ("0.0.0.0", "::")  # noqa: S104 - compared with, not bound


class Connecting:
    def __init__(self, site: Site, settings: Settings) -> None:
        self._site = site
        self._certificate = settings.tls.certificate
        self._read: tuple[float, str] = 0.0, ""

    def shown(self) -> Mapping[str, str]:
        """`origin` of REST and WebSockets, host and port of each listener, and the certificate's fingerprint."""
        origin = urlsplit(self._site.origin)
        known = {"origin": self._site.origin, "fingerprint": self._fingerprint()}
        for protocol, names in _LISTENERS.items():
            found = next(((name, self._site.addresses[name]) for name in names if name in self._site.addresses), None)
            if found is not None:
                name, address = found
                known[protocol] = f"{self._host(address, origin.hostname or '')}:{address.port}"
                known[f"{protocol}_secure"] = "yes" if name != protocol else ""
        return known

    @staticmethod
    def _host(address: Address, public: str) -> str:
        """The host that a device can reach: the public host if the listener is bound to all addresses."""
        host = public if address.host in _EVERYWHERE else address.host
        return f"[{host}]" if ":" in host else host

    def _fingerprint(self) -> str:
        """SHA-256 of the certificate, in pairs of hexadecimal digits; empty without one."""
        if self._certificate is None:
            return ""
        try:
            changed = Path(self._certificate).stat().st_mtime
            if self._read[0] != changed:
                first = x509.load_pem_x509_certificates(Path(self._certificate).read_bytes())[0]
                self._read = changed, first.fingerprint(hashes.SHA256()).hex(":").upper()
        except (OSError, ValueError, IndexError):  # the operator is changing it
            return ""
        return self._read[1]
