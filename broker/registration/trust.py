"""The certificate authorities that a device type trusts (reference 7.1).

A TLS handshake proves that the peer has the private key of its certificate. Whether a chain leads from the certificate
to an authority of the device type is checked here, because a listener does not know the type.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID
from cryptography.x509.verification import (
    Criticality,
    ExtensionPolicy,
    Policy,
    PolicyBuilder,
    Store,
    VerificationError,
)

from broker.clock import Clock
from broker.registration.certificates import UNREADABLE, BadCertificate, ClientCertificate, public_key
from storage.database import Database
from storage.keys import DeviceTypeKey

_INTERMEDIATES_MAX: Final = 4
#: Bounds the search for a chain: a peer may present authorities that all issued each other.
_DEPTH_MAX: Final = 3


class Trust:
    """The authorities of all device types, in memory."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._authorities: dict[DeviceTypeKey, Authorities] = {}

    async def reload(self) -> None:
        """Read all authorities again: there are few, and only provisioning changes them."""
        found = await self._database.read(lambda tx: tx.registrations.all_authorities())
        self._authorities = {device_type: Authorities(certificates) for device_type, certificates in found.items()}

    def check(self, device_type: DeviceTypeKey, shown: ClientCertificate) -> None:
        """Raise BadCertificate unless a chain that is valid now leads to an authority of the type."""
        authorities = self._authorities.get(device_type)
        if authorities is None:
            raise BadCertificate("the device type has no authorities")
        authorities.check(shown, datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC))


class Authorities:
    """The certificate authorities that one device type trusts."""

    def __init__(self, certificates: Sequence[bytes]) -> None:
        """At least one, in DER."""
        self._store = Store([x509.load_der_x509_certificate(der) for der in certificates])

    def check(self, shown: ClientCertificate, now: datetime) -> None:
        """Raise BadCertificate unless a valid chain leads from the peer's certificate to an authority (RFC 5280, 6.1).

        This takes 0.1 ms, and a few milliseconds for a chain that was made to be slow.
        """
        if len(shown.intermediates) > _INTERMEDIATES_MAX:
            raise BadCertificate(f"more than {_INTERMEDIATES_MAX} intermediate certificates")
        try:
            leaf, *intermediates = map(x509.load_der_x509_certificate, (shown.leaf, *shown.intermediates))
            for certificate in (leaf, *intermediates):
                public_key(certificate)
            verifier = (
                PolicyBuilder()
                .store(self._store)
                .time(now)
                .extension_policies(ca_policy=_FOR_AUTHORITIES, ee_policy=_FOR_DEVICES)
                .max_chain_depth(_DEPTH_MAX)
                .build_client_verifier()
            )
            verifier.verify(leaf, intermediates)
        except (VerificationError, *UNREADABLE) as error:
            raise BadCertificate(str(error)) from error


def _may_issue(_policy: Policy, _certificate: x509.Certificate, usage: x509.KeyUsage | None) -> None:
    if usage is not None and not usage.key_cert_sign:
        raise ValueError("its key must not sign certificates")


def _is_an_authority(_policy: Policy, _certificate: x509.Certificate, constraints: x509.BasicConstraints) -> None:
    if not constraints.ca:
        raise ValueError("it is no authority")


def _is_no_authority(
    _policy: Policy, _certificate: x509.Certificate, constraints: x509.BasicConstraints | None
) -> None:
    if constraints is not None and constraints.ca:
        raise ValueError("an authority is no device")


def _may_sign(_policy: Policy, _certificate: x509.Certificate, usage: x509.KeyUsage | None) -> None:
    if usage is not None and not usage.digital_signature:
        raise ValueError("its key must not sign handshakes")


def _may_be_client(_policy: Policy, _certificate: x509.Certificate, usage: x509.ExtendedKeyUsage | None) -> None:
    allowed = {ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE}
    if usage is not None and allowed.isdisjoint(usage):
        raise ValueError("it is not for clients")


# The profile of the Web PKI requires names and identifiers that the certificates of devices often lack.
_FOR_AUTHORITIES: Final = (
    ExtensionPolicy.permit_all()
    .require_present(x509.BasicConstraints, Criticality.AGNOSTIC, _is_an_authority)
    .may_be_present(x509.KeyUsage, Criticality.AGNOSTIC, _may_issue)
)
_FOR_DEVICES: Final = (
    ExtensionPolicy.permit_all()
    .may_be_present(x509.BasicConstraints, Criticality.AGNOSTIC, _is_no_authority)
    .may_be_present(x509.KeyUsage, Criticality.AGNOSTIC, _may_sign)
    .may_be_present(x509.ExtendedKeyUsage, Criticality.AGNOSTIC, _may_be_client)
)
