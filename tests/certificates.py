"""Makes certificates of devices and of their authorities at run time. No private key is in the repository."""

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from broker.registration.certificates import ClientCertificate

Kind = Literal["ec", "rsa"]
PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey

DAY: Final = dt.timedelta(days=1)
_USAGES: Final = (
    "digital_signature",
    "content_commitment",
    "key_encipherment",
    "data_encipherment",
    "key_agreement",
    "key_cert_sign",
    "crl_sign",
    "encipher_only",
    "decipher_only",
)


def new_key(kind: Kind = "ec", *, bits: int = 2048) -> PrivateKey:
    if kind == "ec":
        return ec.generate_private_key(ec.SECP256R1())
    return rsa.generate_private_key(public_exponent=65_537, key_size=bits)


def usage(*names: str) -> x509.KeyUsage:
    return x509.KeyUsage(**{name: name in names for name in _USAGES})


@dataclass(frozen=True)
class Issued:
    """A certificate with its key, and the intermediates between it and its root."""

    certificate: x509.Certificate
    key: PrivateKey
    intermediates: tuple[x509.Certificate, ...] = ()

    @property
    def der(self) -> bytes:
        return self.certificate.public_bytes(Encoding.DER)

    @property
    def pem(self) -> str:
        return self.certificate.public_bytes(Encoding.PEM).decode()

    @property
    def key_pem(self) -> bytes:
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    @property
    def shown(self) -> ClientCertificate:
        """As a TLS peer sees it."""
        return ClientCertificate(self.der, tuple(one.public_bytes(Encoding.DER) for one in self.intermediates))

    def files(self, folder: Path, name: str) -> tuple[Path, Path]:
        """The chain and the key, in PEM."""
        chain, key = folder / f"{name}.pem", folder / f"{name}.key"
        chain.write_bytes(b"".join(one.public_bytes(Encoding.PEM) for one in (self.certificate, *self.intermediates)))
        key.write_bytes(self.key_pem)
        return chain, key


class Authority:
    """Issues certificates, at first its own."""

    def __init__(
        self,
        name: str = "Example devices",
        *,
        now: dt.datetime,
        kind: Kind = "ec",
        issued: Issued | None = None,
        extensions: Sequence[x509.ExtensionType] = (x509.BasicConstraints(ca=True, path_length=None),),
        starts: dt.timedelta = -DAY,
        ends: dt.timedelta = 3650 * DAY,
    ) -> None:
        self._now = now
        key = new_key(kind)
        self.own = issued or Issued(_sign(name, key, name, key, now + starts, now + ends, extensions), key)

    @property
    def pem(self) -> str:
        return self.own.pem

    def issue(
        self,
        name: str = "device-1",
        *,
        kind: Kind = "ec",
        key: PrivateKey | None = None,
        extensions: Sequence[x509.ExtensionType] = (),
        starts: dt.timedelta = -DAY,
        ends: dt.timedelta = 365 * DAY,
    ) -> Issued:
        """A certificate, by default of a device."""
        key = key or new_key(kind)
        own = self.own.certificate
        certificate = _sign(name, key, own.subject, self.own.key, self._now + starts, self._now + ends, extensions)
        chain = () if own.issuer == own.subject else (own, *self.own.intermediates)
        return Issued(certificate, key, chain)

    def delegate(self, name: str = "Example factory", **options: object) -> "Authority":
        """An authority that this one vouches for."""
        options.setdefault("extensions", (x509.BasicConstraints(ca=True, path_length=None),))
        return Authority(now=self._now, issued=self.issue(name, **options))  # type: ignore[arg-type]


def _sign(
    subject: str,
    key: PrivateKey,
    issuer: str | x509.Name,
    signer: PrivateKey,
    starts: dt.datetime,
    ends: dt.datetime,
    extensions: Sequence[x509.ExtensionType],
) -> x509.Certificate:
    builder = (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(issuer if isinstance(issuer, x509.Name) else _name(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(starts)
        .not_valid_after(ends)
    )
    if any(isinstance(one, x509.KeyUsage) and one.key_cert_sign for one in extensions):  # RFC 5280, 4.2.1.2
        extensions = (*extensions, x509.SubjectKeyIdentifier.from_public_key(key.public_key()))
    for extension in extensions:
        is_key = isinstance(extension, x509.AuthorityKeyIdentifier | x509.SubjectKeyIdentifier)
        builder = builder.add_extension(extension, critical=not is_key)  # RFC 5280, 4.2.1.1
    return builder.sign(signer, hashes.SHA256())


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
