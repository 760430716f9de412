"""Whom a device type trusts to vouch for its devices (reference 7.1).

A TLS handshake proves that the peer holds the key of the certificate that it shows. Whether a chain leads from there to
one of the type's authorities is checked here, because it depends on the type, which no listener knows.
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

_INTERMEDIATES_MAX: Final = 4
#: Chains are searched for: what a peer shows may be authorities that all issued each other.
_DEPTH_MAX: Final = 3


class Trust:
    """The authorities of every device type, at hand."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._authorities: dict[int, Authorities] = {}

    async def reload(self) -> None:
        """Read them all again: there are few, and they change with provisioning only."""
        found = await self._database.read(lambda tx: tx.registrations.all_authorities())
        self._authorities = {device_type: Authorities(certificates) for device_type, certificates in found.items()}

    def check(self, device_type: int, shown: ClientCertificate) -> None:
        """Whether one of the type's authorities vouches for this certificate now. Raises BadCertificate."""
        authorities = self._authorities.get(device_type)
        if authorities is None:
            raise BadCertificate("the device type has no authorities")
        authorities.check(shown, datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC))


class Authorities:
    """Whom one device type trusts to vouch for its devices."""

    def __init__(self, certificates: Sequence[bytes]) -> None:
        """At least one, in DER."""
        self._store = Store([x509.load_der_x509_certificate(der) for der in certificates])

    def check(self, shown: ClientCertificate, now: datetime) -> None:
        """Whether a chain leads from the peer's certificate to one of them, all of it valid now (RFC 5280, 6.1).

        Takes a tenth of a millisecond; for a chain that was made to be slow, some.

        Raises BadCertificate.
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


# The Web's own profile wants names and identifiers that factories leave out of their devices' certificates.
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
