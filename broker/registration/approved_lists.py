"""Approved lists: the vendor ids that may become devices of a type, and the certificates for them (reference 7.2)."""

import binascii
from base64 import b64decode
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Final

import trio
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.hashes import SHA256

from broker.clock import Clock
from broker.device_types.catalog import DeviceType
from broker.errors import REQUIRED, Conflict, Finding, NotFound, PermissionDenied, ValidationFailed, invalid
from broker.ids import new_id
from broker.registration.certificates import BadCertificate, public_key, read_signer
from broker.registration.uploads import Uploads
from broker.trace.audit import AuditEvent, note
from config.limits import (
    APPROVED_CERTIFICATES_MAX,
    APPROVED_IDS_OF_ORGANIZATION,
    APPROVED_UPLOADS_KEPT,
    APPROVED_UPLOADS_KEPT_OF_ORGANIZATION,
    APPROVED_UPLOADS_OF_ORGANIZATION,
    APPROVED_UPLOADS_WAITING,
)
from storage.database import Database
from storage.keys import DeviceTypeKey
from storage.records import ApprovedEntryRecord, ApprovedUploadRecord
from storage.transaction import Transaction

TOO_MANY_UPLOADS: Final = "Too many uploads are being processed"
TOO_MANY_IDS: Final = "Too many vendor ids on the lists of the organization"

CERTIFICATE_UPLOADED: Final = "Certificate already uploaded"

HAS_DEVICES: Final = "Device type has devices"

_CHECKED_AT_ONCE: Final = 2

#: Called in the transaction that creates the device. Raises PermissionDenied.
Claim = Callable[[Transaction], None]


class ApprovedLists:
    """The caller checks permissions. Every method is about one device type."""

    def __init__(self, database: Database, clock: Clock, uploads: Uploads) -> None:
        self._database = database
        self._clock = clock
        self._uploads = uploads
        self._checking = trio.CapacityLimiter(_CHECKED_AT_ONCE)

    # The switch

    async def is_enabled(self, type_: DeviceType) -> bool:
        return await self._database.read(lambda tx: tx.approved_lists.is_enabled(type_.key))

    async def set_enabled(self, type_: DeviceType, enabled: bool) -> None:
        """Switch the list on or off. Raises Conflict: the type has devices, or they are registered in another way."""

        def work(tx: Transaction) -> None:
            lists = tx.approved_lists
            if enabled and not lists.is_enabled(type_.key):
                if type_.record.rsp:
                    raise Conflict("Device type requires secure registration")
                if type_.record.has_cloud_connector:
                    raise Conflict("Device type has a cloud connector")
                if lists.has_devices(type_.key):
                    raise Conflict(HAS_DEVICES)
            lists.set_enabled(type_.key, enabled)
            self._note(tx, type_, "enabled" if enabled else "disabled")

        await self._database.write(work)

    # Entries

    async def entries(self, type_: DeviceType, *, offset: int, count: int) -> tuple[list[ApprovedEntryRecord], int]:
        """A page of the entries, and their total number."""
        return await self._database.read(lambda tx: tx.approved_lists.entries(type_.key, offset=offset, limit=count))

    async def find(self, type_: DeviceType, vdid: str) -> ApprovedEntryRecord:
        """The entry of a vendor id. Raises NotFound."""
        return await self._database.read(partial(_entry, type_.key, vdid))

    async def remove(self, type_: DeviceType, vdid: str) -> ApprovedEntryRecord:
        """Remove an entry. A device that has the vendor id is not changed. Raises NotFound."""

        def work(tx: Transaction) -> ApprovedEntryRecord:
            entry = _entry(type_.key, vdid, tx)
            tx.approved_lists.remove_entry(type_.key, vdid)
            self._note(tx, type_, "entry removed")
            return entry

        return await self._database.write(work)

    # Uploads

    async def upload(self, type_: DeviceType, content: bytes) -> str:
        """Accept a CSV file; returns the id of the upload. Raises Conflict: too many uploads wait, or too many ids."""
        upload_id, now_ms = new_id(), self._clock.now_ms()
        most = APPROVED_IDS_OF_ORGANIZATION  # uploads that wait may go beyond it
        if (
            await self._database.read(lambda tx: tx.approved_lists.entries_of_organization(type_.key, most=most))
            >= most
        ):
            raise Conflict(TOO_MANY_IDS)

        def work(tx: Transaction) -> None:
            lists = tx.approved_lists
            of_type, of_organization = lists.waiting_uploads(type_.key)
            if of_type >= APPROVED_UPLOADS_WAITING or of_organization >= APPROVED_UPLOADS_OF_ORGANIZATION:
                raise Conflict(TOO_MANY_UPLOADS)
            lists.forget_uploads(
                type_.key,
                keep=APPROVED_UPLOADS_KEPT - 1,
                keep_of_organization=APPROVED_UPLOADS_KEPT_OF_ORGANIZATION - 1,
            )
            lists.add_upload(type_.key, upload_id, content, now_ms=now_ms)
            self._note(tx, type_, "file uploaded")

        await self._database.write(work)
        self._uploads.wake()
        return upload_id

    async def upload_status(self, type_: DeviceType, upload_id: str) -> ApprovedUploadRecord:
        """An upload with its progress. Raises NotFound."""
        found = await self._database.read(lambda tx: tx.approved_lists.upload(type_.key, upload_id))
        if found is None:
            raise NotFound
        return found

    async def rejected_rows(
        self, upload: ApprovedUploadRecord, *, offset: int, count: int
    ) -> tuple[list[tuple[int, str]], int]:
        """A page of the rejected rows, each with its number (from 1) and the reason; and their total number."""
        rows = await self._database.read(
            lambda tx: tx.approved_lists.rejections(upload.key, offset=offset, limit=count)
        )
        return rows, upload.failed

    # Certificates

    async def certificates(self, type_: DeviceType) -> Sequence[tuple[str, bytes]]:
        """The ids and DER of the type's certificates."""
        return await self._database.read(lambda tx: tx.approved_lists.certificates(type_.key))

    async def certificate(self, type_: DeviceType, id_: str) -> bytes:
        """The DER of a certificate. Raises NotFound."""
        for known, der in await self.certificates(type_):
            if known == id_:
                return der
        raise NotFound

    async def add_certificate(self, type_: DeviceType, pem: str) -> tuple[str, bytes]:
        """Add a certificate; returns its id and DER.

        Raises:
            ValidationFailed: the text is not one certificate in PEM.
            Conflict: the type has the certificate already, or too many.
        """
        try:
            certificate = await trio.to_thread.run_sync(read_signer, pem, limiter=self._checking)
        except BadCertificate as error:
            raise ValidationFailed.of("certificate", invalid("must be one certificate in PEM")) from error
        id_ = new_id()

        def work(tx: Transaction) -> None:
            if len(tx.approved_lists.certificates(type_.key)) >= APPROVED_CERTIFICATES_MAX:
                raise Conflict("Too many certificates")
            if not tx.approved_lists.add_certificate(type_.key, id_, certificate):
                raise Conflict(CERTIFICATE_UPLOADED)
            self._note(tx, type_, "certificate added")

        await self._database.write(work)
        return id_, certificate

    async def remove_certificate(self, type_: DeviceType, id_: str) -> bytes:
        """Remove a certificate; returns its DER. Raises NotFound."""

        def work(tx: Transaction) -> bytes:
            removed = tx.approved_lists.remove_certificate(type_.key, id_)
            if removed is None:
                raise NotFound
            self._note(tx, type_, "certificate removed")
            return removed

        return await self._database.write(work)

    def _note(self, tx: Transaction, type_: DeviceType, what: str) -> None:
        note(tx, AuditEvent.APPROVED_LIST_CHANGED, f"device_type {type_.id}", now_ms=self._clock.now_ms(), what=what)

    # New devices

    async def check(self, type_: DeviceType, vdid: str | None, svdid: str | None) -> Claim:
        """Check that a new device of the type may have this vendor id.

        Args:
            type_: of the device.
            vdid: the id that its vendor gave it.
            svdid: Base64 of the vendor's signature over it: RSA PKCS#1 v1.5 or ECDSA, with SHA-256.

        Returns:
            What must be called in the transaction that creates the device.

        Raises:
            ValidationFailed: the list is enabled, and one of them is missing or cannot be read.
            PermissionDenied: no certificate of the type verifies the signature.
        """
        if type_.record.rsp:  # secure registration proves more than a list
            return lambda _tx: None
        if not await self.is_enabled(type_):
            return partial(_claim, type_.key, None)
        findings = [Finding(name, (REQUIRED,)) for name, given in (("vdid", vdid), ("svdid", svdid)) if not given]
        if findings or vdid is None or svdid is None:
            raise ValidationFailed(tuple(findings))
        try:
            signature = b64decode(svdid, validate=True)
        except (binascii.Error, ValueError) as error:
            raise ValidationFailed.of("svdid", invalid("must be Base64")) from error
        certificates = [der for _, der in await self.certificates(type_)]
        now = datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC)
        is_signed = partial(_is_signed, certificates, vdid.encode(), signature, now)
        if not await trio.to_thread.run_sync(is_signed, limiter=self._checking):
            raise PermissionDenied(f"a vdid that a certificate of device type {type_.id} has signed")
        return partial(_claim, type_.key, vdid)


def _entry(device_type: DeviceTypeKey, vdid: str, tx: Transaction) -> ApprovedEntryRecord:
    entry = tx.approved_lists.entry(device_type, vdid)
    if entry is None:
        raise NotFound
    return entry


def _claim(device_type: DeviceTypeKey, vdid: str | None, tx: Transaction) -> None:
    if not tx.approved_lists.is_enabled(device_type):
        return
    entry = None if vdid is None else tx.approved_lists.entry(device_type, vdid)
    if entry is None or entry.device_id is not None:
        raise PermissionDenied("an unused vdid of the approved list")


def _is_signed(certificates: Sequence[bytes], data: bytes, signature: bytes, now: datetime) -> bool:
    return any(_verifies(x509.load_der_x509_certificate(der), data, signature, now) for der in certificates)


def _verifies(certificate: x509.Certificate, data: bytes, signature: bytes, now: datetime) -> bool:
    """Whether the certificate is valid now and its key made the signature. Vendors can renew a certificate."""
    if not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
        return False
    key = public_key(certificate)
    try:
        if isinstance(key, EllipticCurvePublicKey):
            key.verify(signature, data, ECDSA(SHA256()))
        else:
            key.verify(signature, data, PKCS1v15(), SHA256())
    except InvalidSignature:
        return False
    return True
