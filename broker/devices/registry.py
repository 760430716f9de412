"""The devices in use: one shared object for each, so that a change reaches every open connection."""

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from functools import partial
from weakref import WeakValueDictionary

from msgspec.structs import replace

from broker.accounts.tokens import Caller, TokenKind, Tokens
from broker.changes import Changes
from broker.cluster.kinds import DEVICE
from broker.cluster.news import News
from broker.device_types.catalog import DeviceType, DeviceTypes, ManifestVersion
from broker.errors import DeviceNotFound, PermissionDenied, SourceDeviceDisabled, Unauthorized
from broker.facts import DeviceChanged, Router
from broker.secrets import Vault
from storage.database import Database
from storage.keys import DeviceKey, DeviceTypeKey, OrganizationKey, UserKey
from storage.records import DeviceRecord
from storage.transaction import Transaction

_RECENT = 10_000
_READ_AT_ONCE = 100


class Device:
    """One device. Connections, feeds and Ingest hold this object; `refresh` changes it in place."""

    __slots__ = ("__weakref__", "record", "type")

    def __init__(self, record: DeviceRecord, type_: DeviceType) -> None:
        self.record = record
        self.type = type_

    def refresh(self, record: DeviceRecord, type_: DeviceType) -> None:
        self.record = record
        self.type = type_

    @property
    def key(self) -> DeviceKey:
        return self.record.key

    @property
    def id(self) -> str:
        return self.record.id

    @property
    def owner(self) -> UserKey:
        return self.record.owner

    @property
    def owner_id(self) -> str:
        return self.record.owner_id

    @property
    def type_key(self) -> DeviceTypeKey:
        return self.type.record.key

    @property
    def type_organization(self) -> OrganizationKey:
        return self.type.record.organization

    @property
    def type_protected(self) -> bool:
        return self.type.record.protected

    @property
    def shared_with(self) -> frozenset[UserKey]:
        """The users who accepted a share."""
        return self.record.shared_with

    def is_held_by(self, user: UserKey) -> bool:
        """The user owns the device or accepted a share of it."""
        return user == self.record.owner or user in self.record.shared_with

    @property
    def enabled(self) -> bool:
        return self.record.enabled

    @property
    def manifest(self) -> ManifestVersion:
        """The version that its messages are normalised with (reference 8.4)."""
        if self.record.manifest_version_policy == "DEVICE":
            pinned = self.type.version(self.record.manifest_version)
            if pinned is not None:
                return pinned
        return self.type.latest


class Devices:
    """Finds and authenticates devices."""

    def __init__(
        self, database: Database, router: Router, news: News, device_types: DeviceTypes, tokens: Tokens
    ) -> None:
        self._database = database
        self._router = router
        self._types = device_types
        self._tokens = tokens
        self._live: WeakValueDictionary[DeviceKey, Device] = WeakValueDictionary()
        self._keys: dict[str, DeviceKey] = {}
        self._recent: OrderedDict[DeviceKey, Device] = OrderedDict()
        self._changes = Changes()
        news.listen(DEVICE, self._changed)

    async def find(self, device_id: str) -> Device:
        """Find a device by id. Raises DeviceNotFound."""
        if (known := self._live.get(self._keys.get(device_id, DeviceKey(-1)))) is not None:
            return known
        return await self._load(lambda tx: tx.devices.by_id(device_id), device_id)

    async def find_all(self, device_ids: Iterable[str]) -> dict[str, Device | None]:
        """Find devices by ids; None for an unknown id. Devices that are not in memory are read together."""
        ids = list(device_ids)
        found: dict[str, Device | None] = {id_: self._live.get(self._keys.get(id_, DeviceKey(-1))) for id_ in ids}
        unknown = [id_ for id_, device in found.items() if device is None]
        for first in range(0, len(unknown), _READ_AT_ONCE):
            some = unknown[first : first + _READ_AT_ONCE]
            for record, type_ in await self._changes.settled(partial(self._read_all, some)):
                found[record.id] = self._share(record, type_)
        return found

    async def _read_all(self, device_ids: Collection[str]) -> list[tuple[DeviceRecord, DeviceType]]:
        records = await self._database.read(lambda tx: tx.devices.by_ids(device_ids))
        return [(record, await self._types.get(record.device_type)) for record in records.values()]

    async def get(self, key: DeviceKey) -> Device:
        """The device with this key. Raises DeviceNotFound."""
        return self._live.get(key) or await self._load(partial(_by_key, key), "")

    def get_nowait(self, key: DeviceKey) -> Device | None:
        """The device with this key, if it is in memory: while it is in use, and for some time after its last use."""
        return self._live.get(key)

    async def id_of(self, key: DeviceKey) -> str | None:
        """The id of a device, also of a deleted one; None when it was removed for good."""
        if (known := self._live.get(key)) is not None:
            return known.id
        return await self._database.read(lambda tx: tx.devices.id_of(key))

    async def by_eid(self, owner: UserKey, device_type: DeviceTypeKey, eid: str) -> Device | None:
        """The device that a connector knows by this external id."""
        record = await self._database.read(lambda tx: tx.devices.by_eid(owner, device_type, eid))
        return None if record is None else await self.get(record.key)

    async def by_vdid(self, device_type: DeviceTypeKey, vdid: str) -> Device | None:
        """The device that its vendor knows by this id."""
        record = await self._database.read(lambda tx: tx.devices.by_vdid(device_type, vdid))
        return None if record is None else await self.get(record.key)

    async def listed(self, *, owner: UserKey | None, limit: int) -> list[Device]:
        """The first devices by name, for the operator: of one owner or of all."""
        return await self.get_all(await self._database.read(lambda tx: tx.devices.keys(owner=owner, limit=limit)))

    async def called(self, name: str, *, limit: int) -> list[Device]:
        """The devices of this name, by id, for the operator; names need not be unique."""
        return await self.get_all(await self._database.read(lambda tx: tx.devices.keys_called(name, limit=limit)))

    async def owned_by(self, user: UserKey) -> list[Device]:
        return await self.get_all(await self._database.read(lambda tx: tx.devices.keys_of_owner(user)))

    async def get_all(self, keys: Iterable[DeviceKey]) -> list[Device]:
        """The devices with these keys, in their order, without deleted ones."""
        found = []
        for key in keys:
            with suppress(DeviceNotFound):
                found.append(await self.get(key))
        return found

    async def authenticate(self, device_id: str, token: str) -> tuple[Device, Caller]:
        """A device by its id and its own token, as MQTT sends them.

        Raises:
            Unauthorized: no such device, a token that is not valid, or another device's.
            PermissionDenied: a valid token, but not of a device.
            SourceDeviceDisabled: the device is disabled.
        """
        before = self._changes.count
        caller, record = await self._tokens.caller_and_record(token)
        if caller.kind is not TokenKind.DEVICE:
            raise PermissionDenied("a device token")
        if caller.device_id != device_id or caller.device is None:
            raise Unauthorized
        device = await self._of_token(token, caller.device, record, before)
        if not device.enabled:
            raise SourceDeviceDisabled
        return device, caller

    async def by_token(self, token: str) -> tuple[Device, Caller]:
        """A device by its own token alone, as CoAP sends it. The caller checks whether the device is enabled.

        Raises:
            Unauthorized: a token that is not valid.
            PermissionDenied: a valid token, but not of a device.
        """
        before = self._changes.count
        caller, record = await self._tokens.caller_and_record(token)
        if caller.device is None:
            raise PermissionDenied("a device token")
        return await self._of_token(token, caller.device, record, before), caller

    async def _of_token(self, token: str, key: DeviceKey, record: DeviceRecord | None, before: int) -> Device:
        """The device of this token. `record` was read together with the token, when `before` changes were noted."""
        if (device := self._live.get(key)) is not None:
            return device
        if record is not None:
            type_ = await self._types.get(record.device_type)
            device = self._share(record, type_) if self._changes.count == before else None
        device = device or await self.get(key)
        await self._tokens.caller(token)  # it may have been revoked while the device was loaded
        return device

    def by_token_nowait(self, token: str) -> tuple[Device, Caller] | None:
        """Look up a token without waiting; None unless token and device are in memory, as after a recent request."""
        caller = self._tokens.caller_nowait(token)
        device = None if caller is None or caller.device is None else self._live.get(caller.device)
        return None if caller is None or device is None else (device, caller)

    async def pre_shared_key(self, device_id: str, vault: Vault) -> bytes | None:
        """The device's token as 16 bytes (reference 17 and 18.1). None: no such device, or it has no token."""
        sealed = await self._database.read(partial(_sealed_token, device_id))
        return None if sealed is None else bytes.fromhex(vault.open(sealed))

    async def reload(self) -> None:
        """Read all devices in use again, after many may have changed. Publishes DeviceChanged for each changed one."""
        self._changes.note()
        for key, device in list(self._live.items()):
            found = await self._read(partial(_by_key, key))
            if found is not None and found[0] != device.record:
                device.refresh(*found)
                self._router.publish(DeviceChanged(key))

    def _changed(self, key: DeviceKey, record: DeviceRecord | None) -> None:
        """Refresh the shared object, and publish DeviceChanged."""
        self._changes.note()
        device = self._live.get(key)
        if device is not None and record is not None:
            device.refresh(record, device.type)
        elif device is not None:  # deleted; it is disabled for tasks that still hold the object
            self._keys.pop(device.id, None)
            self._recent.pop(key, None)
            del self._live[key]
            device.refresh(replace(device.record, enabled=False, shared_with=frozenset()), device.type)
        self._router.publish(DeviceChanged(key))

    async def _read(
        self, choose: Callable[[Transaction], DeviceRecord | None]
    ) -> tuple[DeviceRecord, DeviceType] | None:
        """The current record of a device, and its type; None when there is no such device."""

        async def read() -> tuple[DeviceRecord, DeviceType] | None:
            record = await self._database.read(choose)
            return None if record is None else (record, await self._types.get(record.device_type))

        return await self._changes.settled(read)

    async def _load(self, choose: Callable[[Transaction], DeviceRecord | None], device_id: str) -> Device:
        found = await self._read(choose)
        if found is None:
            raise DeviceNotFound(device_id)
        return self._share(*found)

    def _share(self, record: DeviceRecord, type_: DeviceType) -> Device:
        """The one object for this device, which is made of the record if there is none."""
        device = self._live.get(record.key)
        if device is None:
            device = self._live[record.key] = Device(record, type_)
        self._keys[record.id] = record.key
        self._recent[record.key] = device
        if len(self._recent) > _RECENT:
            _, dropped = self._recent.popitem(last=False)
            self._keys.pop(dropped.id, None)
        return device


def device_in(tx: Transaction, record: DeviceRecord | None) -> Device | None:
    """A device as an open transaction sees it; None for None, and for a device whose type is gone."""
    type_ = None if record is None else tx.device_types.device_type(record.device_type)
    if record is None or type_ is None:
        return None
    return Device(record, DeviceType(type_, tx.device_types.manifests(type_.key)))


def _by_key(key: DeviceKey, tx: Transaction) -> DeviceRecord | None:
    return tx.devices.device(key)


def _sealed_token(device_id: str, tx: Transaction) -> bytes | None:
    record = tx.devices.by_id(device_id)
    token = None if record is None else tx.devices.token_of(record.key)
    return None if token is None else token.sealed
