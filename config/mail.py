"""Addresses and the mail server's URL, read and checked.

`outbound.smtp_url` is one of

- `smtp://` (port 587): STARTTLS, with the certificate checked. On this machine's loopback, a plain connection is
  allowed, so STARTTLS is used if the server offers it, without a check of the certificate.
- `smtp+starttls://` (port 587): STARTTLS with the certificate checked, on loopback as well.
- `smtps://` (port 465): TLS from the first byte, with the certificate checked.

User and password are percent-decoded. No error text repeats the URL, because the URL may contain a password.
"""

import re
import unicodedata
from dataclasses import dataclass, field
from email.headerregistry import Address
from enum import Enum
from ipaddress import ip_address
from urllib.parse import SplitResult, unquote, urlsplit

import idna
import msgspec

_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~\-\u0080-\U0010ffff]+"
_LOCAL_PART = re.compile(rf"{_ATOM}(?:\.{_ATOM})*")
_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_DOMAIN = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_DOMAIN_CHARACTERS = 253  # of a domain in ASCII (RFC 1035, 2.3.4); one in other letters is shorter
_NAMED = re.compile(r"(?P<name>[^<>]*)<(?P<address>[^<>]*)>")


def mail_address(text: str) -> str:
    """The address in the form of an SMTP envelope: the domain in lower-case ASCII.

    Quoted local parts and address literals are refused; nothing that passes can end a header line or an SMTP command.

    Raises:
        ValueError: the text is not an address.
    """
    local, at, domain = text.rpartition("@")
    domain = _ascii_domain(domain) or ""
    if (
        not at
        or not text.isprintable()
        or not _LOCAL_PART.fullmatch(local)
        or not _DOMAIN.fullmatch(domain)
        or len(local.encode()) > 64  # RFC 5321 section 4.5.3.1
        or len(domain) > 253
    ):
        raise ValueError("not a mail address")
    return f"{local}@{domain}"


def folded_address(text: str) -> str:
    """The form in which addresses are compared: two that have the same are one (reference 5.1).

    Without regard to case and composition in all of Unicode, and with the domain as the domain name system has it
    (RFC 5891). For text that is no address, too.
    """
    local, at, domain = text.strip().rpartition("@")
    return f"{caseless(local)}{at}{_ascii_domain(domain) or caseless(domain)}"


def caseless(text: str) -> str:
    """The text without regard to case and composition (Unicode 3.13, canonical caseless matching)."""
    folded = unicodedata.normalize("NFD", text).casefold()
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", folded).casefold())


def _ascii_domain(domain: str) -> str | None:
    """The domain in lower case, with labels of other alphabets as `xn--`; None if the text is no domain."""
    if domain.isascii():
        return domain.lower()
    if len(domain) > _DOMAIN_CHARACTERS:
        return None
    try:
        return idna.encode(domain, uts46=True).decode("ascii").lower()
    except UnicodeError:  # idna.IDNAError is one
        return None


class Sender(msgspec.Struct, frozen=True):
    """The sender of the daemon's mails. `domain` may be an address literal."""

    name: str
    local_part: str
    domain: str

    @property
    def address(self) -> str:
        return f"{self.local_part}@{self.domain}"

    @property
    def header(self) -> Address:
        return Address(self.name, self.local_part, self.domain)

    @classmethod
    def of(cls, mail_from: str, public_url: str) -> "Sender":
        """`outbound.mail_from`, an address or `Name <address>`; empty: trunkline at the public URL's host.

        Raises:
            ValueError: the text is neither an address nor `Name <address>`.
        """
        if not mail_from:
            return cls("Trunkline", "trunkline", _domain_of(public_url))
        named = _NAMED.fullmatch(mail_from)
        name, text = (named["name"].strip(), named["address"]) if named else ("", mail_from)
        if not name.isprintable():
            raise ValueError("not a mail address")
        local_part, _, domain = mail_address(text).rpartition("@")
        if not local_part.isascii():
            raise ValueError("not an ASCII mail address")
        return cls(name, local_part, domain)


def _domain_of(public_url: str) -> str:
    try:
        host = urlsplit(public_url).hostname or "localhost"
    except ValueError:
        return "localhost"
    try:
        literal = ip_address(host)
    except ValueError:
        pass
    else:
        return f"[{literal}]" if literal.version == 4 else f"[IPv6:{literal}]"
    try:
        return mail_address(f"trunkline@{host}").rpartition("@")[2]
    except ValueError:
        return "localhost"


class MailSecurity(Enum):
    """How the connection to the mail server must be secured before mail is sent."""

    STARTTLS_IF_OFFERED = "STARTTLS if offered"
    STARTTLS = "STARTTLS"
    TLS = "TLS"


_SCHEMES = {
    "smtp": (MailSecurity.STARTTLS, 587),
    "smtp+starttls": (MailSecurity.STARTTLS, 587),
    "smtps": (MailSecurity.TLS, 465),
}


@dataclass(frozen=True, slots=True)
class SmtpServer:
    host: str
    port: int
    security: MailSecurity
    user: str = ""
    password: str = field(default="", repr=False)

    @classmethod
    def parse(cls, url: str) -> "SmtpServer":
        """Read `outbound.smtp_url`.

        Raises:
            ValueError: the text says what is expected, and never contains the URL.
        """
        parts, port = _split(url)
        if parts is None or parts.scheme not in _SCHEMES or not parts.hostname:
            raise ValueError(f"expected scheme://user:password@host:port (allowed schemes: {', '.join(_SCHEMES)})")
        if parts.path not in {"", "/"} or parts.query or parts.fragment:
            raise ValueError("nothing may follow host:port; percent-encode / ? # @ : in user and password")
        user, password = unquote(parts.username or ""), unquote(parts.password or "")
        if not (user + password).isascii():
            raise ValueError("user and password must be ASCII")  # smtplib cannot send other characters
        if password and not user:
            raise ValueError("a password needs a user")
        security, default_port = _SCHEMES[parts.scheme]
        if parts.scheme == "smtp" and is_loopback(parts.hostname):
            security = MailSecurity.STARTTLS_IF_OFFERED
        return cls(parts.hostname, default_port if port is None else port, security, user, password)


def _split(url: str) -> tuple[SplitResult | None, int | None]:
    try:
        parts = urlsplit(url)
        return parts, parts.port
    except ValueError:  # the error's text may quote a part of the password
        return None, None


def is_loopback(host: str) -> bool:
    """Whether the host is written as a loopback address or `localhost`; no name is resolved."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
