"""The versions of a type's Manifest: their upload and approval, and the log of failed messages.

Each change is a new version. A simple Manifest is approved at once. An Advanced Manifest runs its author's expression
for every message, so it waits for an operator's approval, and until then the version before it is used.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import trio
from msgspec.structs import replace

from broker.clock import Clock
from broker.cluster.kinds import TYPE_CHANGED
from broker.device_types.catalog import DeviceTypes
from broker.device_types.documents import DeviceTypeDocument, DeviceTypeDocuments
from broker.device_types.overview import (
    FAILURES_MAX,
    FailedMessage,
    FailedMessages,
    FailedReading,
    TypeOverview,
    UploadedManifest,
)
from broker.errors import DeviceTypeNotFound, NotFound
from broker.facts import DeviceTypeChanged, Router
from broker.trace.audit import AuditEvent, note
from storage.database import Database
from storage.device_types import TypeSearch
from storage.keys import DeviceKey, DeviceTypeKey
from storage.records import DeviceTypeRecord, ManifestRecord
from storage.transaction import Transaction

_TYPES_MAX: Final = 100_000


@dataclass(slots=True, eq=False, repr=False)
class Manifests:
    _database: Database
    _clock: Clock
    _types: DeviceTypes
    _router: Router
    _documents: DeviceTypeDocuments

    async def overview(self) -> list[TypeOverview]:
        """Every device type, by name."""

        def work(tx: Transaction) -> list[TypeOverview]:
            return [_overview(record, tx) for record in tx.device_types.page(TypeSearch(), count=_TYPES_MAX, offset=0)]

        return await self._database.read(work)

    async def upload(self, id_or_name: str, document: Mapping[str, Any], *, approve: bool = False) -> UploadedManifest:
        """Make a document the newest version. `approve`: approve an Advanced Manifest, too.

        Raises DeviceTypeNotFound, and ValidationFailed with every problem of the document.
        """
        now_ms, read = self._clock.now_ms(), await self._documents.read(document)

        def work(tx: Transaction) -> UploadedManifest:
            found = _type(id_or_name, tx)
            record, is_new = put_manifest(tx, found.key, read, approve=approve, now_ms=now_ms)
            if is_new:
                tx.tell(TYPE_CHANGED, found.key)
            return UploadedManifest(found.id, record.version, record.approved, is_new)

        return await self._change(work)

    async def approve(self, id_or_name: str, version: int) -> UploadedManifest:
        """Approve a version, so that devices use it. Raises DeviceTypeNotFound, NotFound."""
        now_ms = self._clock.now_ms()

        def work(tx: Transaction) -> UploadedManifest:
            found = _type(id_or_name, tx)
            waiting = {one.version: one.approved for one in tx.device_types.manifests(found.key)}
            if version not in waiting:
                raise NotFound
            if not waiting[version]:
                tx.device_types.approve_manifest(found.key, version, now_ms=now_ms)
                tx.tell(TYPE_CHANGED, found.key)
                note(tx, AuditEvent.MANIFEST_APPROVED, f"device_type {found.id}", now_ms=now_ms, version=version)
            return UploadedManifest(found.id, version, approved=True, is_new=not waiting[version])

        return await self._change(work)

    async def _change(self, work: Callable[[Transaction], UploadedManifest]) -> UploadedManifest:
        with trio.CancelScope(shield=True):  # a durable change must reach the types in use
            uploaded = await self._database.write(work)
            await self._types.reload()
            if uploaded.is_new and uploaded.approved:
                self._router.publish(DeviceTypeChanged((await self._types.find(uploaded.device_type)).key))
        return uploaded

    async def documents(self, device_type: DeviceTypeKey) -> list[ManifestRecord]:
        """Every version, newest first."""
        found = await self._database.read(lambda tx: tx.device_types.manifests(device_type))
        return sorted(found, key=lambda one: one.version, reverse=True)

    async def failed_of(self, device_type: DeviceTypeKey, *, limit: int) -> FailedMessages:
        """The last failed messages of all devices of a type."""
        return await self._database.read(lambda tx: _failed(tx, device_type, device=None, limit=limit))

    async def failures(self, device_or_type: str, *, limit: int) -> FailedMessages:
        """The last failed messages of a device, or of all devices of a type.

        Raises NotFound: there is neither a device nor a type of this id.
        """

        def work(tx: Transaction) -> FailedMessages:
            device = tx.devices.by_id(device_or_type)
            type_ = tx.device_types.by_id_or_name(device_or_type) if device is None else None
            most = min(limit, FAILURES_MAX)
            if device is not None:
                return _failed(tx, device.device_type, device=device.key, limit=most)
            if type_ is None:
                raise NotFound
            return _failed(tx, type_.key, device=None, limit=most)

        return await self._database.read(work)


def _failed(tx: Transaction, device_type: DeviceTypeKey, *, device: DeviceKey | None, limit: int) -> FailedMessages:
    found = tx.device_types.failed_messages(device=device, device_type=device_type, limit=limit)
    reading = tx.failed_readings.of_type(device_type)
    return FailedMessages(
        tuple(FailedMessage(id_, row.cts, row.reason, row.payload) for id_, row in found),
        None
        if reading is None or not reading.looked
        else FailedReading(reading.version, reading.looked, reading.fit, reading.began_on, reading.ended_on),
    )


def put_manifest(
    tx: Transaction, device_type: DeviceTypeKey, document: DeviceTypeDocument, *, approve: bool, now_ms: int
) -> tuple[ManifestRecord, bool]:
    """Make a document the newest version. Returns its record, and whether anything changed."""
    text = document.text
    is_approved = approve or document.manifest.transform is None
    newest = tx.device_types.newest_manifest(device_type)
    if newest is not None and _canonical(newest.document) == _canonical(text):
        if newest.approved or not is_approved:
            return newest, False
        tx.device_types.approve_manifest(device_type, newest.version, now_ms=now_ms)
        return replace(newest, approved=True), True
    version = newest.version + 1 if newest else 1
    record = ManifestRecord(device_type, version, text.decode(), is_approved, now_ms)
    tx.device_types.add_manifest(record)
    return record, True


def is_same_document(known: str, document: Mapping[str, Any]) -> bool:
    """Whether a stored document says the same, in whatever order."""
    return _canonical(known) == _canonical(msgspec.json.encode(document))


def _canonical(document: str | bytes) -> bytes:
    return msgspec.json.encode(msgspec.json.decode(document), order="sorted")


def _overview(record: DeviceTypeRecord, tx: Transaction) -> TypeOverview:
    waiting = tuple(one.version for one in tx.device_types.manifests(record.key) if not one.approved)
    return TypeOverview(record.id, record.unique_name, record.published, record.latest_version, waiting)


def _type(id_or_name: str, tx: Transaction) -> DeviceTypeRecord:
    found = tx.device_types.by_id_or_name(id_or_name)
    if found is None:
        raise DeviceTypeNotFound
    return found
