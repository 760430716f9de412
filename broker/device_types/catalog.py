"""Device types with their Manifests, shared by every device that has the type."""

from collections.abc import Callable
from functools import partial
from weakref import WeakValueDictionary

from broker.changes import Changes
from broker.device_types.documents import parsed_manifest
from broker.device_types.dropped import DroppedField
from broker.device_types.manifest import NO_MANIFEST, Manifest
from broker.device_types.normalize import Normalizer
from broker.device_types.transform import Transform
from broker.errors import DeviceTypeNotFound
from storage.database import Database
from storage.keys import DeviceTypeKey
from storage.records import DeviceTypeRecord, ManifestRecord
from storage.transaction import Transaction

_Choice = Callable[[Transaction], DeviceTypeRecord | None]


class ManifestVersion:
    """One immutable version of a Manifest, with its normaliser.

    `normalize`, `normalize_fitting` and `normalize_noting` are those of `Normalizer`. With a `transform`, they take any
    bytes and may raise TransformFailedError. `normalize_stored` is `normalize_noting` for data to which the transform
    was applied before, in another store.
    """

    __slots__ = ("manifest", "normalize", "normalize_fitting", "normalize_noting", "normalize_stored", "version")

    def __init__(self, version: int, manifest: Manifest) -> None:
        self.version = version
        self.manifest = manifest
        normalizer = Normalizer(manifest)
        normalize: Callable[[bytes], bytes | None] = normalizer.normalize
        fitting: Callable[[bytes], bytes | None] = normalizer.normalize_fitting
        noting: Callable[[bytes, list[DroppedField]], bytes | None] = normalizer.normalize_noting
        self.normalize_stored = noting
        # Decided here and not for each message, so that devices without a transform have no cost.
        transform = manifest.transform
        self.normalize = normalize if transform is None else partial(_transform, transform, normalize)
        self.normalize_fitting = fitting if transform is None else partial(_transform, transform, fitting)
        self.normalize_noting = noting if transform is None else partial(_transform_noting, transform, noting)

    @property
    def takes_any_payload(self) -> bool:
        """Whether devices may send payloads that are not the JSON text of an object."""
        return self.manifest.transform is not None


def _transform(transform: Transform, normalize: Callable[[bytes], bytes | None], payload: bytes) -> bytes | None:
    return normalize(transform.apply(payload))


def _transform_noting(
    transform: Transform,
    noting: Callable[[bytes, list[DroppedField]], bytes | None],
    payload: bytes,
    dropped: list[DroppedField],
) -> bytes | None:
    return noting(transform.apply(payload), dropped)


_NO_MANIFEST = ManifestVersion(0, NO_MANIFEST)


class DeviceType:
    """A device type: one object for each type, so that its devices see a change."""

    def __init__(self, record: DeviceTypeRecord, manifests: list[ManifestRecord]) -> None:
        self._documents: dict[int, str] = {}  # of the approved versions
        self._parsed: dict[int, ManifestVersion] = {}
        self.refresh(record, manifests)

    def refresh(self, record: DeviceTypeRecord, manifests: list[ManifestRecord]) -> None:
        self.record = record
        for manifest in manifests:
            if manifest.approved:
                self._documents.setdefault(manifest.version, manifest.document)
        # Others are read when a device wants them: a type may have hundreds, and a long one takes 0.1 s.
        newest = self.version(max(self._documents)) if self._documents else None
        self.latest = newest or _NO_MANIFEST

    @property
    def key(self) -> DeviceTypeKey:
        return self.record.key

    @property
    def id(self) -> str:
        return self.record.id

    @property
    def versions(self) -> list[int]:
        """The numbers of the approved versions, ascending."""
        return sorted(self._documents)

    def version(self, number: int) -> ManifestVersion | None:
        """An approved version, or None."""
        if (known := self._parsed.get(number)) is None and (document := self._documents.get(number)) is not None:
            known = self._parsed[number] = ManifestVersion(number, parsed_manifest(document))
        return known


class DeviceTypes:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._live: WeakValueDictionary[DeviceTypeKey, DeviceType] = WeakValueDictionary()
        self._changes = Changes()

    async def get(self, key: DeviceTypeKey) -> DeviceType:
        if (known := self._live.get(key)) is not None:
            return known
        return await self._load(lambda tx: tx.device_types.device_type(key))

    async def find(self, id_or_name: str) -> DeviceType:
        """Find a type by id or unique name. Raises DeviceTypeNotFound."""
        return await self._load(lambda tx: tx.device_types.by_id_or_name(id_or_name))

    async def _load(self, choose: _Choice) -> DeviceType:
        found = await self._changes.settled(lambda: self._database.read(lambda tx: _with_manifests(tx, choose)))
        if found is None:
            raise DeviceTypeNotFound
        record, manifests = found
        # Another task may have loaded the type during the read; all tasks must share one object.
        if (known := self._live.get(record.key)) is not None:
            known.refresh(record, manifests)
            return known
        device_type = self._live[record.key] = DeviceType(record, manifests)
        return device_type

    async def reload(self) -> None:
        """Read all types in use again, after many may have changed."""
        self._changes.note()
        for key in list(self._live):
            await self._load(partial(_by_key, key))


def _by_key(key: DeviceTypeKey, tx: Transaction) -> DeviceTypeRecord | None:
    return tx.device_types.device_type(key)


def _with_manifests(tx: Transaction, choose: _Choice) -> tuple[DeviceTypeRecord, list[ManifestRecord]] | None:
    record = choose(tx)
    return None if record is None else (record, tx.device_types.manifests(record.key))
