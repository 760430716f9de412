"""Device types that members of an organization make, and their Manifests (reference 27.21)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import trio
from msgspec.structs import replace

from broker.clock import Clock
from broker.cluster.kinds import TYPE_CHANGED
from broker.conditional import require_unchanged, tag_of
from broker.device_types.catalog import DeviceType, DeviceTypes, ManifestVersion
from broker.device_types.documents import DeviceTypeDocument, DeviceTypeDocuments
from broker.device_types.manifests import put_manifest
from broker.device_types.overview import UploadedManifest
from broker.device_types.transform import TransformFailedError
from broker.errors import BadRequest, Conflict, NotFound, ValidationFailed
from broker.facts import DeviceTypeChanged, Router
from broker.ids import new_device_type_id
from broker.trace.audit import AuditEvent, note
from config.limits import MANIFEST_VERSIONS_MAX, ORGANIZATION_TYPES_MAX
from storage.database import Database
from storage.keys import DeviceTypeKey
from storage.records import NEW_KEY, DeviceTypeRecord, ManifestRecord, OrganizationRecord
from storage.transaction import Transaction

TAKEN: Final = "A device type has this unique name"
TOO_MANY: Final = f"The organization has {ORGANIZATION_TYPES_MAX} device types"
TOO_MANY_VERSIONS: Final = f"The device type has {MANIFEST_VERSIONS_MAX} Manifests"
NOTHING_REMAINS: Final = "no field of the Manifest is in the payload"


class TypeChanges(msgspec.Struct, frozen=True):
    """Changes of a device type; None leaves a value as it is."""

    name: str | None = None
    description: str | None = None
    published: bool | None = None
    protected: bool | None = None
    tags: Sequence[str] | None = None


class Tried(msgspec.Struct, frozen=True):
    """Result of trying a Manifest on a payload: `data`, or else the `reason` why a message with it would fail."""

    data: Any
    reason: str


@dataclass(eq=False)
class TypeMaking:
    _database: Database
    _clock: Clock
    _catalog: DeviceTypes
    _router: Router
    _documents: DeviceTypeDocuments

    async def add(
        self, organization: OrganizationRecord, unique_name: str, name: str, wanted: TypeChanges
    ) -> DeviceTypeRecord:
        """Raises ValidationFailed, Conflict."""
        now_ms = self._clock.now_ms()
        new = DeviceTypeRecord(
            key=NEW_KEY,
            id=new_device_type_id(),
            unique_name=unique_name,
            name=name,
            organization=organization.key,
            organization_id=organization.id,
            published=False,
            protected=False,
            rsp=False,
            description=None,
            tags=(),
            created_on=now_ms,
        )

        def work(tx: Transaction) -> DeviceTypeRecord:
            if tx.device_types.by_unique_name(unique_name) is not None:
                raise ValidationFailed.of("uniqueName", TAKEN)
            if tx.device_types.number_of(organization.key) >= ORGANIZATION_TYPES_MAX:
                raise Conflict(TOO_MANY)
            key = tx.device_types.put_device_type(_changed(new, wanted))
            note(tx, AuditEvent.DEVICE_TYPE_CREATED, f"device_type {new.id}", now_ms=now_ms)
            return _standing(tx, key)

        return await self._database.write(work)

    async def change(self, type_: DeviceType, wanted: TypeChanges) -> DeviceTypeRecord:
        now_ms = self._clock.now_ms()

        def work(tx: Transaction) -> DeviceTypeRecord:
            known = _standing(tx, type_.key)
            changed = _changed(known, wanted)
            if changed != known:
                tx.device_types.put_device_type(changed)
                tx.tell(TYPE_CHANGED, type_.key)
                note(tx, AuditEvent.DEVICE_TYPE_CHANGED, f"device_type {known.id}", now_ms=now_ms)
            return _standing(tx, type_.key)

        with trio.CancelScope(shield=True):  # a durable change must reach the types in use
            changed = await self._database.write(work)
            await self._catalog.reload()
        return changed

    async def upload(self, type_: DeviceType, document: Mapping[str, Any]) -> UploadedManifest:
        """Make a document the newest version. An Advanced Manifest then waits for an operator's approval.

        Raises ValidationFailed with every problem of the document, Conflict.
        """
        now_ms, read = self._clock.now_ms(), await self._documents.read(document)

        def work(tx: Transaction) -> UploadedManifest:
            require_unchanged(manifest_tag(tx.device_types.newest_manifest(type_.key)))
            record, is_new = put_manifest(tx, type_.key, read, approve=False, now_ms=now_ms)
            if is_new and record.version > MANIFEST_VERSIONS_MAX:
                raise Conflict(TOO_MANY_VERSIONS)
            if is_new:
                tx.tell(TYPE_CHANGED, type_.key)
                object_ = f"device_type {type_.id}"
                note(tx, AuditEvent.MANIFEST_UPLOADED, object_, now_ms=now_ms, version=record.version)
            return UploadedManifest(type_.id, record.version, record.approved, is_new)

        with trio.CancelScope(shield=True):
            uploaded = await self._database.write(work)
            await self._catalog.reload()
            if uploaded.is_new and uploaded.approved:
                self._router.publish(DeviceTypeChanged(type_.key))
        return uploaded

    async def try_out(self, document: Mapping[str, Any], payload: bytes) -> Tried:
        """Try a Manifest on a payload, without storing anything.

        An expression has the bounds that it has for messages. Raises ValidationFailed with every problem.
        """
        return await self._documents.run(document, lambda: _tried(self._documents.checked(document), payload))


def _tried(document: DeviceTypeDocument, payload: bytes) -> Tried:
    version = ManifestVersion(0, document.manifest)
    try:
        data = version.normalize(payload)
    except TransformFailedError as failure:
        return Tried(None, str(failure))
    except BadRequest:
        return Tried(None, "the payload is not the JSON text of an object")
    return Tried(None, NOTHING_REMAINS) if data is None else Tried(msgspec.json.decode(data), "")


def _standing(tx: Transaction, key: DeviceTypeKey) -> DeviceTypeRecord:
    found = tx.device_types.device_type(key)
    if found is None:
        raise NotFound
    return found


def _changed(known: DeviceTypeRecord, wanted: TypeChanges) -> DeviceTypeRecord:
    given = {
        name: value
        for name in ("name", "description", "published", "protected")
        if (value := getattr(wanted, name)) is not None
    }
    if wanted.tags is not None:
        given["tags"] = tuple(dict.fromkeys(wanted.tags))
    return replace(known, **given)


def manifest_tag(newest: ManifestRecord | None) -> str:
    """The tag of the object that an upload replaces: the newest version of a type's Manifest."""
    return tag_of(None if newest is None else newest.version)
