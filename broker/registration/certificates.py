"""X.509 certificates: their members in the device record, and the parsing of uploaded certificates."""

import hashlib
from collections.abc import Mapping
from datetime import datetime
from typing import Final

import msgspec
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID, SignatureAlgorithmOID

PublicKey = RSAPublicKey | EllipticCurvePublicKey

_RSA_BITS: Final = range(2048, 8193)
_SIGNATURE_ALGORITHMS: Final = {
    SignatureAlgorithmOID.RSA_WITH_SHA256: "SHA256withRSA",
    SignatureAlgorithmOID.RSA_WITH_SHA384: "SHA384withRSA",
    SignatureAlgorithmOID.RSA_WITH_SHA512: "SHA512withRSA",
    SignatureAlgorithmOID.RSASSA_PSS: "RSASSA-PSS",
    SignatureAlgorithmOID.ECDSA_WITH_SHA256: "SHA256withECDSA",
    SignatureAlgorithmOID.ECDSA_WITH_SHA384: "SHA384withECDSA",
    SignatureAlgorithmOID.ECDSA_WITH_SHA512: "SHA512withECDSA",
}


#: Errors of cryptography for certificates that OpenSSL accepts and cryptography cannot read.
UNREADABLE: Final = (
    ValueError,
    TypeError,  # a name of bits
    UnsupportedAlgorithm,
    x509.InvalidVersion,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)


class BadCertificate(Exception):
    """A certificate cannot be read, or is not suitable. The text has the reason."""


class ClientCertificate(msgspec.Struct, frozen=True):
    """The certificates that a peer presented in a TLS or DTLS handshake, in DER.

    The handshake has proved that the peer has the private key of `leaf`. Nothing else has been checked.
    """

    leaf: bytes
    intermediates: tuple[bytes, ...] = ()

    @property
    def size(self) -> int:
        """Bytes of the certificates."""
        return len(self.leaf) + sum(map(len, self.intermediates))


def certificate_info(der: bytes) -> Mapping[str, str]:
    """`certificateInfo` of the device record (reference 7.1). Raises one of UNREADABLE."""
    certificate = x509.load_der_x509_certificate(der)
    subject = certificate.subject
    return {
        "Issuer-DN": certificate.issuer.rfc4514_string(),
        "Cert-UID": _attribute(subject, NameOID.USER_ID),
        "Cert-CN": _attribute(subject, NameOID.COMMON_NAME),
        "Cert-SN": f"{certificate.serial_number:x}",
        "Cert-FP": certificate.fingerprint(SHA256()).hex(),
    }


def certificate_signature(der: bytes) -> str:
    """`certificateSignature` of the device record: the value of the signature, in hexadecimal."""
    return x509.load_der_x509_certificate(der).signature.hex()


def certificate_fields(der: bytes) -> Mapping[str, object]:
    """`certificateFields` of a certificate of an approved list (reference 7.2). Times are in milliseconds."""
    certificate = x509.load_der_x509_certificate(der)
    algorithm = certificate.signature_algorithm_oid
    return {
        "version": str(certificate.version.value + 1),
        "serialNumber": f"{certificate.serial_number:x}",
        "signatureAlgorithm": _SIGNATURE_ALGORITHMS.get(algorithm, algorithm.dotted_string),
        "subject": certificate.subject.rfc4514_string(),
        "issuer": certificate.issuer.rfc4514_string(),
        "validity": {
            "notBefore": _milliseconds(certificate.not_valid_before_utc),
            "notAfter": _milliseconds(certificate.not_valid_after_utc),
        },
    }


def issuer_dn(authority: bytes) -> str:
    """`issuerDn` of a device type, from its first authority (reference 7.1)."""
    name = x509.load_der_x509_certificate(authority).issuer.public_bytes()
    return hashlib.sha256(name).hexdigest()[:32]


def _attribute(name: x509.Name, oid: x509.ObjectIdentifier) -> str:
    found = name.get_attributes_for_oid(oid)
    return str(found[0].value) if found else ""


def _milliseconds(at: datetime) -> int:
    return int(at.timestamp() * 1000)


# Reading what people upload


def read_authorities(pem: str) -> tuple[bytes, ...]:
    """The authorities in a PEM text, in DER and in their order. Raises BadCertificate."""
    found = _certificates(pem)
    for certificate in found:
        if not _is_authority(certificate):
            raise BadCertificate(f"{certificate.subject.rfc4514_string()} is not the certificate of an authority")
    return tuple(dict.fromkeys(certificate.public_bytes(Encoding.DER) for certificate in found))


def read_signer(pem: str) -> bytes:
    """The one certificate in a PEM text, in DER. Raises BadCertificate."""
    found = _certificates(pem)
    if len(found) != 1:
        raise BadCertificate(f"one certificate, not {len(found)}")
    return found[0].public_bytes(Encoding.DER)


def _certificates(pem: str) -> list[x509.Certificate]:
    if "PRIVATE KEY" in pem:
        raise BadCertificate("a private key does not belong here")
    try:
        found = x509.load_pem_x509_certificates(pem.encode())
        for certificate in found:
            public_key(certificate)
            certificate.subject.rfc4514_string()
            certificate.issuer.rfc4514_string()
            _is_authority(certificate)
    except UNREADABLE as error:
        raise BadCertificate("no certificate in PEM") from error
    return found


def _is_authority(certificate: x509.Certificate) -> bool:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False


def public_key(certificate: x509.Certificate) -> PublicKey:
    """The public key of a certificate. Raises BadCertificate unless it is an elliptic curve or a strong RSA key."""
    try:
        key = certificate.public_key()
    except UNREADABLE as error:
        raise BadCertificate("its key cannot be read") from error
    if isinstance(key, EllipticCurvePublicKey) or (isinstance(key, RSAPublicKey) and key.key_size in _RSA_BITS):
        return key
    raise BadCertificate(f"its key is neither RSA of {_RSA_BITS[0]} to {_RSA_BITS[-1]} bits nor of an elliptic curve")
